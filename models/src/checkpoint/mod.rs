//! The tensors of a model directory: memory-mapped safetensors, each read where it lies, with its shape checked against
//! config.json.

mod dequantised;
mod expert_layouts;
mod files;
mod folder;
mod gpt_oss;
mod header;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use faser_kernels::Source;

pub(crate) use self::dequantised::Dequantised;
use self::expert_layouts::{ExpertLayout, InStack};
pub use self::files::weight_files;
pub(crate) use self::files::{Files, has_weights};
pub(crate) use self::folder::{check_pointer, why_not};
pub(crate) use self::gpt_oss::GptOss;
use self::header::{Header, Placed};
use crate::ModelError;
use crate::load::{EMBEDDING, HEAD, Tensors};

/// Looks whether `file` is a safetensors file, by its header alone; returns where each tensor's bytes are.
///
/// # Errors
/// What is wrong with it.
pub fn check_header(file: &[u8]) -> Result<Vec<Range<usize>>, String> {
    let header = Header::read(file)?;
    Ok(header.iter().map(|(_, placed)| placed.bytes.clone()).collect())
}

/// Whether an LM head is stored beside the embedding, and is another matrix.
///
/// # Errors
/// The files are damaged.
pub(crate) fn has_head_of_its_own(dir: &Path) -> Result<bool, ModelError> {
    if !has_weights(dir) {
        return Ok(false);
    }
    let files = Files::map(dir)?;
    let checkpoint = Checkpoint::new(&files)?;
    let stored = |name| checkpoint.stored(name).map(|(placed, data)| (&placed.dtype, &placed.shape, data));
    Ok(match (stored(EMBEDDING), stored(HEAD)) {
        (Some(embedding), Some(head)) => embedding != head,
        _ => false,
    })
}

/// The shapes of all tensors.
///
/// # Errors
/// The files are damaged.
pub(crate) fn stored_shapes(files: &Files) -> Result<HashMap<String, Vec<usize>>, ModelError> {
    let checkpoint = Checkpoint::new(files)?;
    let all = checkpoint.headers.iter().flat_map(Header::iter);
    Ok(all.map(|(name, placed)| (name.clone(), placed.shape.clone())).collect())
}

/// Where one tensor lies, and whether the model has asked for it.
struct Entry {
    file: usize,
    taken: Cell<bool>,
}

/// All tensors of one model directory.
pub(crate) struct Checkpoint<'a> {
    files: &'a Files,
    headers: Vec<Header>,
    entries: HashMap<String, Entry>,
    experts: ExpertLayout,
    total_bytes: u64,
}

impl<'a> Checkpoint<'a> {
    /// Reads the files' headers.
    pub(crate) fn new(files: &'a Files) -> Result<Checkpoint<'a>, ModelError> {
        let mut headers = Vec::with_capacity(files.mapped.len());
        let mut entries: HashMap<String, Entry> = HashMap::new();
        let mut total_bytes = 0;
        for (path, bytes) in &files.mapped {
            let header = Header::read(bytes).map_err(|problem| ModelError::format(path, &problem))?;
            for (name, placed) in header.iter() {
                total_bytes += placed.bytes.len() as u64;
                if let Some(Entry { file, .. }) = entries.get(name) {
                    let other = files.path(*file).display();
                    return Err(ModelError::format(path, &format!("tensor `{name}` is in {other} as well")));
                }
                entries.insert(name.clone(), Entry { file: headers.len(), taken: Cell::new(false) });
            }
            headers.push(header);
        }
        let experts = ExpertLayout::of(entries.keys());
        Ok(Checkpoint { files, headers, entries, experts, total_bytes })
    }
}

impl Checkpoint<'_> {
    fn missing(&self, name: &str, reason: &str) -> ModelError {
        let (path, tensor, reason) = (self.files.catalogue.clone(), name.to_owned(), reason.to_owned());
        ModelError::MissingTensor { path, tensor, reason }
    }

    /// What a tensor has is read, or says nothing of the model.
    fn take(&self, name: &str) {
        self.entries.get(name).iter().for_each(|entry| entry.taken.set(true));
    }

    /// The name of a tensor, if it is there.
    fn named(&self, name: &str) -> Option<&str> {
        self.entries.get_key_value(name).map(|(name, _)| name.as_str())
    }

    /// A tensor as it lies in its file.
    fn stored(&self, name: &str) -> Option<(&Placed, &[u8])> {
        let entry = self.entries.get(name)?;
        let placed = self.headers.get(entry.file)?.get(name)?;
        let (_, bytes) = self.files.mapped.get(entry.file)?;
        Some((placed, bytes.get(placed.bytes.clone())?))
    }
}

impl Tensors for Checkpoint<'_> {
    fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    fn prepare(&mut self, _layer: usize) -> Result<(), ModelError> {
        Ok(())
    }

    fn tensor(&self, name: &str, shape: &[usize], reason: &str) -> Result<Source<'_>, ModelError> {
        let (name, place) = self.experts.stored(name);
        let missing = || self.missing(&name, reason);
        let entry = self.entries.get(&name).ok_or_else(missing)?;
        let path = self.files.path(entry.file);
        let (placed, data) = self.stored(&name).ok_or_else(missing)?;
        let wrong = |expected: Vec<usize>| ModelError::Shape {
            path: path.to_owned(),
            tensor: name.clone(),
            found: placed.shape.clone(),
            expected,
            reason: reason.to_owned(),
        };
        let data = match place {
            Some(place) => {
                let (data, last) = place.of(&placed.shape, shape, data).map_err(wrong)?;
                // A stack of more experts than the model has is not all taken.
                entry.taken.set(last);
                data
            }
            None if placed.shape == shape => {
                entry.taken.set(true);
                data
            }
            None => return Err(wrong(shape.to_vec())),
        };
        match placed.numbers() {
            Some(stored) => Ok(Source::File(stored, data)),
            None => Err(ModelError::TensorDtype {
                path: path.to_owned(),
                tensor: name,
                dtype: placed.dtype.escape_debug().to_string(),
            }),
        }
    }

    fn integers(&self, name: &str, count: usize, reason: &str) -> Result<Vec<i64>, ModelError> {
        let entry = self.entries.get(name).ok_or_else(|| self.missing(name, reason))?;
        let (placed, data) = self.stored(name).ok_or_else(|| self.missing(name, reason))?;
        entry.taken.set(true);
        let path = || self.files.path(entry.file).to_owned();
        if placed.shape != [count] {
            let (tensor, found) = (name.to_owned(), placed.shape.clone());
            let reason = reason.to_owned();
            return Err(ModelError::Shape { path: path(), tensor, found, expected: vec![count], reason });
        }
        let long = |bytes: &[u8]| bytes.try_into().map(i64::from_le_bytes).unwrap_or_default();
        let short = |bytes: &[u8]| bytes.try_into().map(i32::from_le_bytes).unwrap_or_default();
        match placed.dtype.as_str() {
            "I64" => Ok(data.chunks_exact(8).map(long).collect()),
            "I32" => Ok(data.chunks_exact(4).map(|bytes| i64::from(short(bytes))).collect()),
            other => Err(ModelError::Format {
                path: path(),
                problem: format!(
                    "tensor `{name}` is stored as {}, and not in whole numbers (I64)",
                    other.escape_debug()
                ),
            }),
        }
    }

    fn finish(&self, tied: bool) -> Result<(), ModelError> {
        let left = self.entries.iter().filter(|(name, entry)| !entry.taken.get() && !harmless(name, tied));
        let Some((name, entry)) = left.min_by_key(|(name, _)| *name) else { return Ok(()) };
        Err(ModelError::UnexpectedTensor {
            path: self.files.path(entry.file).to_owned(),
            tensor: name.clone(),
            hint: hint(name).to_owned(),
        })
    }
}

impl InStack {
    /// The bytes of a matrix of this shape among those of the `stack`, and whether it is of the last expert.
    ///
    /// # Errors
    /// The stack has another shape: the one that it should have.
    fn of<'d>(
        self,
        stack: &[usize],
        shape: &[usize],
        data: &'d [u8],
    ) -> Result<(&'d [u8], bool), Vec<usize>> {
        let InStack { expert, part, parts } = self;
        let (&[rows, cols], experts) = (shape, stack.first().copied().unwrap_or(0)) else {
            return Err(shape.to_vec());
        };
        if stack != [experts.max(expert + 1), parts * rows, cols] {
            return Err(vec![experts.max(expert + 1), parts * rows, cols]);
        }
        // The header saw to it that the bytes are those of the shape.
        let each = data.len() / (experts * parts).max(1);
        let first = (expert * parts + part) * each;
        Ok((&data[first..first + each], expert + 1 == experts))
    }
}

/// Tensors that some exporters write although they follow from config.json or from another tensor.
fn harmless(name: &str, tied: bool) -> bool {
    // Of heads: what was needed for training alone.
    name.ends_with(".rotary_emb.inv_freq") || (tied && name == HEAD) || name == "t2d"
}

fn hint(name: &str) -> &'static str {
    if name.starts_with("model.layers.") && name.ends_with(".bias") {
        ": check `attention_bias`, `mlp_bias` and `architectures`"
    } else if name.contains(".experts.") {
        ": check `num_experts`, `decoder_sparse_step`, `mlp_only_layers` and `num_hidden_layers`"
    } else if name.starts_with("model.layers.") {
        ": check `num_hidden_layers` and `architectures`"
    } else {
        ": check `architectures`"
    }
}
