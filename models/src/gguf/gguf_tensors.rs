//! The tensors of a GGUF model by the names and in the layout that checkpoints have.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use faser_kernels::{HeadRows, Slice, Source};

use super::header::shown;
use super::rope_factors::FACTORS;
use super::tensor_names::in_gguf;
use super::{Gguf, Stored};
use crate::load::Tensors;
use crate::{Architecture, ModelConfig, ModelError};

/// Sources over the mapped files, which note what was asked for.
pub(crate) struct GgufTensors<'a> {
    gguf: &'a Gguf<'a>,
    sources: HashMap<&'a str, Source<'a>>,
    asked: RefCell<HashSet<&'a str>>,
    architecture: Architecture,
    /// Rows of a head, where those of q and k are stored in another order.
    paired: Option<usize>,
}

impl<'a> GgufTensors<'a> {
    /// Of a model of this shape. llama.cpp turns neighbours of a head of a Llama, where checkpoints turn its halves: its converter reorders
    /// the rows of q and k.
    pub(crate) fn new(gguf: &'a Gguf<'a>, config: &ModelConfig) -> GgufTensors<'a> {
        let sources = gguf.tensors.iter().map(|(name, tensor)| (*name, tensor.source())).collect();
        let paired = matches!(
            config.architecture,
            Architecture::Llama | Architecture::Mistral | Architecture::Mixtral | Architecture::SmolLm3
        );
        let paired = paired.then_some(config.head_dim);
        GgufTensors { gguf, sources, asked: RefCell::default(), architecture: config.architecture, paired }
    }

    /// A tensor, and which part of it, where it is a stack of the experts' matrices.
    fn stored(&self, name: &str) -> Option<(&'a str, &'a Stored<'a>, Option<usize>)> {
        let (theirs, expert) = in_gguf(name, self.architecture)?;
        let (name, tensor) = self.gguf.tensors.get_key_value(theirs.as_str())?;
        Some((name, tensor, expert))
    }
}

impl Tensors for GgufTensors<'_> {
    fn total_bytes(&self) -> u64 {
        let read = self.gguf.tensors.iter().filter(|(name, _)| !FACTORS.contains(*name));
        read.map(|(_, tensor)| tensor.data.len() as u64).sum()
    }

    fn tensor(&self, name: &str, shape: &[usize], reason: &str) -> Result<Source<'_>, ModelError> {
        let missing = || {
            let own = in_gguf(name, self.architecture).map_or_else(|| name.to_owned(), |(own, _)| own);
            let problem = format!("there is no tensor `{own}`, which the metadata ask for ({reason})");
            ModelError::format(self.gguf.metadata.path(), &problem)
        };
        let (own, tensor, expert) = self.stored(name).ok_or_else(missing)?;
        let experts = tensor.shape.first().copied().unwrap_or(0);
        let expected = match expert {
            Some(expert) => [&[experts.max(expert + 1)], shape].concat(),
            // Of one row: it may be a vector there.
            None if shape.len() == 2 && shape[0] == 1 && tensor.shape.len() == 1 => shape[1..].to_vec(),
            None => shape.to_vec(),
        };
        if tensor.shape != expected {
            let problem = format!(
                "tensor `{own}` has shape {:?}, and {expected:?} follows from the metadata ({reason})",
                tensor.shape
            );
            return Err(ModelError::format(tensor.path, &problem));
        }
        // A stack of more experts than the model has is not all asked for.
        if expert.is_none_or(|expert| expert + 1 == experts) {
            self.asked.borrow_mut().insert(own);
        }
        let source = self.sources.get(own).ok_or_else(missing)?;
        if let (Some(expert), &[rows, cols]) = (expert, shape) {
            let own = expert * rows..(expert + 1) * rows;
            return Ok(Source::Part(source, Slice::new(cols, own, 0..cols)));
        }
        let is_turned = [".q_proj.", ".k_proj."].iter().any(|part| name.contains(part));
        Ok(match self.paired.filter(|_| is_turned) {
            Some(head) => {
                let cols = shape[1..].iter().product();
                Source::Reordered(source, HeadRows { cols, head, rotated: head, neighbours: true })
            }
            None => *source,
        })
    }

    fn finish(&self, _tied: bool) -> Result<(), ModelError> {
        let asked = self.asked.borrow();
        let left =
            self.gguf.tensors.iter().filter(|(name, _)| !FACTORS.contains(*name) && !asked.contains(*name));
        let Some((name, tensor)) = left.min_by_key(|(name, _)| **name) else { return Ok(()) };
        let problem =
            format!("tensor `{}` has no place in the model that the metadata describe", shown(name));
        Err(ModelError::format(tensor.path, &problem))
    }
}
