//! What a pass launches for rows of blocks that depend on the token drawn before each (DSpark): step by step, without the host in between. The order
//! of the steps: `along.rs`; what is computed: `markov.rs`.
//!
//! ```text
//! a step     embed the tokens before ── gates ── bias, added to the logits ── draw ── how sure
//! ```

use faser_kernels::cuda::{
    CudaError, DeviceBuffer, EmbedArgs, GatesArgs, NoteDrawnArgs, Product, Ptr, RmsNormArgs, Sample,
    SuretyArgs,
};

use super::along::Samples;
use super::{CudaPasses, CudaSizes, Drawn};
use crate::MarkovKind;

impl CudaPasses {
    /// Adds to the logits of the samples of a step what they take from the tokens before them: the anchors, or what was drawn in the step before.
    pub(super) fn follow(&mut self, drawn: &Drawn, step: usize, samples: Samples) -> Result<(), CudaError> {
        let model = self.model.clone();
        let weights = model.parts.of_head.as_ref().and_then(|of_head| of_head.markov.as_ref());
        let room = self.head.as_ref().and_then(|head| head.markov.as_ref());
        let (Some(weights), Some(room)) = (weights, room) else { return Ok(()) };
        let (config, element, sms) = (&model.config, model.element, self.lane.sms());
        let rank = config.block().and_then(|block| block.markov).map_or(0, |markov| markov.rank);
        let Samples { first, most, count: rows } = samples;
        let (hidden, f32, most_rows) = (config.hidden, size_of::<f32>(), most as u32);
        let [embedded, state, mixed, reads, gates, bias] =
            [&room.embedded, &room.state, &room.mixed, &room.reads, &room.gates, &room.bias]
                .map(DeviceBuffer::ptr);
        let before = match step.checked_sub(1) {
            None => self.pass.anchors,
            Some(before) => drawn.on_device.behind(self.along.of_step(before).start * size_of::<u32>()),
        };
        let args = EmbedArgs {
            table: weights.before.ptr(),
            tokens: before,
            out: embedded,
            rows,
            cols: rank as u32,
            vocabulary: config.vocab as u32,
            first: 0,
            held: config.vocab as u32,
            scale: 1.0,
        };
        self.lane.launch(&args.launch(element, most_rows, sms))?;
        // Rows of one thing to columns of another, of the element, normed where there are weights.
        let copied = |x, weight, out, cols: usize, out_stride: usize| RmsNormArgs {
            x,
            weight,
            out,
            rows,
            cols: cols as u32,
            x_stride: cols as u32,
            out_stride: out_stride as u32,
            eps: config.rms_eps,
        };
        let product = |x, w, bias, out, inputs, outputs| Product {
            element,
            x,
            w,
            bias,
            out,
            rows: CudaSizes::bucket(most),
            inputs,
            outputs,
            add: false,
            records: None,
        };
        match &weights.mix {
            None => {
                let copy = copied(embedded, Ptr::NULL, reads, rank, rank);
                self.lane.launch(&copy.launch(element, most_rows, sms))?;
            }
            Some((matrix, added)) => {
                let recurrent = weights.kind == MarkovKind::Recurrent;
                if recurrent && step == 0 {
                    self.lane.clear(state, most * rank * f32)?;
                }
                let (inputs, outputs, [of_embedding, of_hidden]) = match recurrent {
                    true => (2 * rank + hidden, 3 * rank, [rank, 2 * rank]),
                    false => (hidden + rank, rank, [hidden, 0]),
                };
                let column = |at: usize| mixed.behind(at * element.bytes());
                let stream = self.gathered.at(first * hidden * f32);
                let normed = copied(stream, model.parts.norm.ptr(), column(of_hidden), hidden, inputs);
                let token = copied(embedded, Ptr::NULL, column(of_embedding), rank, inputs);
                let state_before = recurrent.then(|| copied(state, Ptr::NULL, mixed, rank, inputs));
                for part in [normed, token].into_iter().chain(state_before) {
                    self.lane.launch(&part.launch(element, most_rows, sms))?;
                }
                self.multiply(product(mixed, matrix.ptr(), added.ptr(), gates, inputs, outputs), rows)?;
                let state = if recurrent { state } else { Ptr::NULL };
                let args = GatesArgs { gates, embedded, state, out: reads, rows, rank: rank as u32 };
                self.lane.launch(&args.launch(element, most_rows, sms))?;
            }
        }
        let (own, proposed) = self.own_logits();
        self.multiply(product(reads, weights.bias.ptr(), Ptr::NULL, bias, rank, proposed), rows)?;
        let own = own.behind(first * proposed * f32);
        let args = copied(bias, Ptr::NULL, own, proposed, proposed);
        self.lane.launch(&args.add(most_rows, sms))?;
        self.spread_logits(samples)
    }

    /// What was drawn in a step becomes proposals for the next, and the head says how sure it is of them, if it does.
    pub(super) fn say_how_sure(&mut self, drawn: &Drawn, samples: Samples) -> Result<(), CudaError> {
        let (model, sms, tail) = (self.model.clone(), self.lane.sms(), self.pass.tail);
        let Samples { first, most, count: rows } = samples;
        let Some(of_head) = &model.parts.of_head else { return Ok(()) };
        if of_head.markov.is_some() {
            let args = NoteDrawnArgs {
                tokens: drawn.on_device.behind(first * size_of::<u32>()),
                samples: tail.sample_rows.behind(first * size_of::<Sample>()),
                proposals: tail.proposals,
                rows,
                stride: tail.proposal_stride,
            };
            self.lane.launch(&args.launch(most as u32, sms))?;
        }
        let Some(surety) = of_head.surety.as_ref().filter(|_| drawn.confidence_at != Ptr::NULL) else {
            return Ok(());
        };
        let room = self.head.as_ref().and_then(|head| head.markov.as_ref());
        let hidden = model.config.hidden;
        let rank = model.config.block().map_or(0, |block| block.confidence_rank());
        let args = SuretyArgs {
            hidden: self.final_normed.at(first * hidden * model.element.bytes()),
            before: room.map_or(Ptr::NULL, |room| room.embedded.ptr()),
            weights: surety.weights.ptr(),
            bias: surety.bias.ptr(),
            out: drawn.confidence_at.behind(first * size_of::<f32>()),
            rows,
            cols: hidden as u32,
            rank: rank as u32,
        };
        self.lane.launch(&args.launch(model.element, most as u32, sms))
    }
}
