//! A mixture of experts on a GPU, in place of an MLP.
//!
//! ```text
//! router ─ route ─ experts_activate ─ experts ─ sum_experts (and the norm of what follows)
//! ```
//! Which rows go to which experts, the device alone knows: each launch is that of the bucket, and a graph holds it.

use faser_kernels::cuda::{
    ActivateArgs, CudaError, ExpertsArgs, MostGroups, Product, Ptr, RouteArgs, RouterArgs, SumExpertsArgs,
    form_of,
};

use super::CudaPasses;
use super::cuda_layer::Then;
use super::cuda_model::{CudaExperts, ptr};
use super::staged::RowArrays;
use crate::layer_spec::Experts;

impl CudaPasses {
    /// Adds what the experts make of the residual stream to it. `normed`: its norm is there already. Of a group each rank has a share, as of any
    /// branch. `next` is the weight of the norm that what follows begins with, if that may be done here: whether it was.
    pub(super) fn mix(
        &mut self,
        branch: &CudaExperts,
        spec: &Experts,
        rows: RowArrays,
        normed: bool,
        next: Option<Ptr>,
    ) -> Result<bool, CudaError> {
        let (most_rows, sms, element) = (rows.bucket as u32, self.lane.sms(), self.model.element);
        let (hidden, eps) = (self.model.config.hidden, self.model.config.rms_eps);
        let (x, stream) = (self.normed.ptr(), self.x.ptr());
        if !normed {
            let args = self.norm_of(stream, branch.norm_before.ptr(), x, rows.counts);
            self.lane.launch(&args.launch(element, most_rows, sms))?;
        }
        let room = self.experts.as_ref().expect("a model with experts has room for them");
        let router = RouterArgs {
            x: stream,
            norm: branch.norm_before.ptr(),
            w: branch.router.ptr(),
            bias: ptr(&branch.router_bias),
            logits: room.logits.ptr(),
            rows: rows.counts,
            hidden: hidden as u32,
            outputs: spec.router_width() as u32,
            eps,
        };
        let word = size_of::<u32>();
        let route = RouteArgs {
            logits: router.logits,
            chosen: room.chosen.ptr(),
            weights: room.weights.ptr(),
            places: room.places.ptr(),
            group_rows: room.group_rows.ptr(),
            hit: room.groups.ptr(),
            experts: room.groups.at(word),
            starts: room.groups.at((1 + spec.count) * word),
            rows: rows.counts,
            tickets: self.tickets.ptr(),
            count: spec.count as u32,
            stride: router.outputs,
            active: spec.active as u32,
            renormed: u32::from(spec.renormed),
        };
        // The experts' matrices stand one behind the other (`RowsPacker`): that of the first is where all begin.
        let first = &branch.each[0];
        let inputs = ExpertsArgs {
            x,
            w: first.inputs.ptr(),
            bias: ptr(&first.inputs_bias),
            out: room.activated.ptr(),
            hit: route.hit,
            experts: route.experts,
            starts: route.starts,
            group_rows: route.group_rows,
            inputs: hidden as u32,
            outputs: 2 * spec.width as u32,
            activation: spec.activation as u32,
            form: form_of(first.inputs.form()),
        };
        let outputs = ExpertsArgs {
            x: inputs.out,
            w: first.output.ptr(),
            bias: ptr(&first.output_bias),
            out: room.products.ptr(),
            group_rows: Ptr::NULL,
            inputs: spec.width as u32,
            outputs: hidden as u32,
            form: form_of(first.output.form()),
            ..inputs
        };
        let shared = room.shared.ptr();
        let next = next.filter(|_| !self.is_split());
        let sum = SumExpertsArgs {
            norm: self.norm_of(stream, next.unwrap_or(Ptr::NULL), next.map_or(Ptr::NULL, |_| x), rows.counts),
            products: outputs.out,
            places: route.places,
            weights: route.weights,
            shared: if branch.shared.is_some() { shared } else { Ptr::NULL },
            gates: route.logits.behind(spec.count * word),
            out: stream,
            rows: rows.counts,
            cols: hidden as u32,
            active: route.active,
            gate_stride: route.stride,
            add: u32::from(self.model.shard().is_first()),
        };
        let most = MostGroups::of(most_rows, route.active, route.count);
        self.lane.launch(&router.launch(most_rows, sms))?;
        self.lane.launch(&route.launch(most_rows, sms))?;
        if let (Some(of_all), Some(width)) = (&branch.shared, spec.shared) {
            let (mlp, activated) = (self.mlp.ptr(), self.activated.ptr());
            let args = ActivateArgs {
                x: mlp,
                out: activated,
                rows: rows.counts,
                cols: width as u32,
                activation: spec.activation as u32,
                gated: 1,
            };
            let bias = ptr(&of_all.inputs_bias);
            let product = self.product(&of_all.inputs, x, bias, mlp, [hidden, 2 * width]);
            let product = Product { rows: rows.bucket, ..product };
            self.multiply_then(product, rows.counts, Then::Activate(args))?;
            let bias = ptr(&of_all.output_bias);
            let product = self.product(&of_all.output, activated, bias, shared, [width, hidden]);
            self.multiply(Product { rows: rows.bucket, ..product }, rows.counts)?;
        }
        self.lane.launch(&inputs.activate(element, most, sms))?;
        self.lane.launch(&outputs.launch(element, most, sms))?;
        self.lane.launch(&sum.launch(element, most_rows, sms))?;
        self.add_up(stream)?;
        Ok(next.is_some())
    }
}
