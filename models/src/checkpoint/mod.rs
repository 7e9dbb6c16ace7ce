//! The tensors of a model directory: memory-mapped safetensors, each read once, with its shape checked against
//! config.json.

mod files;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use candle_core::DType;
use candle_core::safetensors::SliceSafetensors;
use faser_kernels::Source;
use half::{bf16, f16};

pub(crate) use self::files::Files;
pub use self::files::weight_files;
use crate::{ModelError, Progress};

/// One tensor's numbers as they were stored.
pub(crate) enum Values {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Values {
    pub(crate) fn source(&self) -> Source<'_> {
        match self {
            Values::F32(values) => Source::F32(values),
            Values::Bf16(values) => Source::Bf16(values),
            Values::F16(values) => Source::F16(values),
        }
    }
}

/// Where one tensor lies, and whether the model has asked for it.
struct Entry {
    file: usize,
    taken: bool,
}

/// All tensors of one model directory.
pub(crate) struct Checkpoint<'a> {
    files: &'a Files,
    headers: Vec<SliceSafetensors<'a>>,
    entries: HashMap<String, Entry>,
    done: Progress,
    progress: &'a mut dyn FnMut(Progress),
}

impl<'a> Checkpoint<'a> {
    /// Reads the files' headers; `progress` hears of every tensor read later.
    pub(crate) fn new(
        files: &'a Files,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<Checkpoint<'a>, ModelError> {
        let mut headers = Vec::with_capacity(files.mapped.len());
        let mut entries: HashMap<String, Entry> = HashMap::new();
        let mut total_bytes = 0;
        for (path, bytes) in &files.mapped {
            let header = SliceSafetensors::new(bytes).map_err(|error| {
                let problem =
                    format!("it is no safetensors file, or a truncated one: copy it again ({error})");
                ModelError::format(path, &problem)
            })?;
            for (name, view) in header.tensors() {
                total_bytes += view.data().len() as u64;
                if let Some(Entry { file, .. }) = entries.get(&name) {
                    let other = files.path(*file).display();
                    return Err(ModelError::format(path, &format!("tensor `{name}` is in {other} as well")));
                }
                entries.insert(name, Entry { file: headers.len(), taken: false });
            }
            headers.push(header);
        }
        let done = Progress { done_bytes: 0, total_bytes };
        progress(done);
        Ok(Checkpoint { files, headers, entries, done, progress })
    }

    /// Reads one tensor; `reason` names the keys of config.json that its presence and shape follow from.
    pub(crate) fn take(
        &mut self,
        name: &str,
        expected: &[usize],
        reason: &str,
    ) -> Result<Values, ModelError> {
        let missing = || ModelError::MissingTensor {
            path: self.files.catalogue.clone(),
            tensor: name.to_owned(),
            reason: reason.to_owned(),
        };
        let entry = self.entries.get_mut(name).ok_or_else(missing)?;
        let path = self.files.path(entry.file);
        let header = self.headers.get(entry.file).ok_or_else(missing)?;
        let view = header.get(name).map_err(|e| ModelError::format(path, &e))?;
        entry.taken = true;
        if view.shape() != expected {
            return Err(ModelError::Shape {
                path: path.to_owned(),
                tensor: name.to_owned(),
                found: view.shape().to_vec(),
                expected: expected.to_vec(),
                reason: reason.to_owned(),
            });
        }
        let values = match DType::try_from(view.dtype()) {
            Ok(DType::F32) => Values::F32(numbers(view.data(), f32::from_le_bytes)),
            Ok(DType::BF16) => Values::Bf16(numbers(view.data(), bf16::from_le_bytes)),
            Ok(DType::F16) => Values::F16(numbers(view.data(), f16::from_le_bytes)),
            _ => {
                return Err(ModelError::TensorDtype {
                    path: path.to_owned(),
                    tensor: name.to_owned(),
                    dtype: format!("{:?}", view.dtype()),
                });
            }
        };
        self.done.done_bytes += view.data().len() as u64;
        (self.progress)(self.done);
        Ok(values)
    }

    /// Call when the model is complete: a tensor nobody asked for means that config.json and the weights disagree.
    pub(crate) fn finish(self, tied: bool) -> Result<(), ModelError> {
        let mut left: Vec<(&String, &Entry)> =
            self.entries.iter().filter(|(name, entry)| !entry.taken && !harmless(name, tied)).collect();
        left.sort_by_key(|(name, _)| *name);
        let Some((name, entry)) = left.first() else { return Ok(()) };
        Err(ModelError::UnexpectedTensor {
            path: self.files.path(entry.file).to_owned(),
            tensor: (*name).clone(),
            hint: hint(name).to_owned(),
        })
    }
}

/// Tensors that some exporters write although they follow from config.json or from another tensor.
fn harmless(name: &str, tied: bool) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight")
}

fn hint(name: &str) -> &'static str {
    if name.starts_with("model.layers.") && name.ends_with(".bias") {
        ": check `attention_bias`, `mlp_bias` and `architectures`"
    } else if name.starts_with("model.layers.") {
        ": check `num_hidden_layers` and `architectures`"
    } else {
        ": check `architectures`"
    }
}

fn numbers<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|chunk| from(*chunk)).collect()
}
