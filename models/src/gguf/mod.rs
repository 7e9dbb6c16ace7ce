//! GGUF, the format of llama.cpp: one file, or the parts of a split, with all of a model in it. Its metadata are read as the config.json and
//! tokenizer.json that the model was converted from, so that one path leads on from there.
//!
//! ```text
//! parts    which files                      config_keys  what config.json would say ── config
//! header   metadata and tensors, checked    names        which of our tensors each is
//! metadata values by their keys             tensors      Tensors over the mapped files ── load
//! ```
//!
//! - The files are mapped, and each tensor is read where it lies: nothing is held twice. Quantised numbers are widened as a packer asks for
//!   them ([`faser_kernels::Source::Blocks`]), or, where [`faser_kernels::Matrix::pack`] has a place for their bits, kept as they are.
//! - The reader is one of our own. That of `candle-core` 0.11, which tests alone depend on, bounds what it allocates, but divides by an
//!   alignment of 0, multiplies dimensions without looking, takes the last of two keys or tensors of one name, lets tensors lie over each
//!   other, and copies all of them and each token. This one copies nothing, and names what is wrong. Tests hold the widened numbers against
//!   those of `candle-core`.
//!
//! Source: the specification in ggml (`docs/gguf.md`), and what llama.cpp's `convert_hf_to_gguf.py` writes of a checkpoint.

mod check_file;
mod config_keys;
mod gguf_tensors;
mod header;
mod metadata;
mod parts;
mod rope_factors;
mod tensor_names;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use faser_kernels::Source;

pub use self::check_file::check_gguf;
pub(crate) use self::config_keys::{config, sampling};
pub(crate) use self::gguf_tensors::GgufTensors;
use self::header::{Format, Header};
pub(crate) use self::metadata::Metadata;
pub(crate) use self::parts::{Parts, is_gguf, paths};
use crate::ModelError;

/// A model in GGUF files.
pub(crate) struct Gguf<'a> {
    /// What is known of it: in its first file.
    pub(crate) metadata: Metadata<'a>,
    version: u32,
    /// In the order of the files.
    tensors: HashMap<&'a str, Stored<'a>>,
}

/// A tensor, and the path of the file that it is in.
struct Stored<'a> {
    path: &'a Path,
    format: Format,
    /// Row-major, as everywhere here: the number of columns comes last.
    shape: Vec<usize>,
    data: &'a [u8],
}

impl<'a> Gguf<'a> {
    /// Reads the headers of the files.
    ///
    /// # Errors
    /// A file is damaged, has something in it that is not read, or is a part of something else.
    pub(crate) fn read(parts: &'a Parts) -> Result<Gguf<'a>, ModelError> {
        let gguf = Gguf::of(parts.files(), |metadata, number| parts.check_place(metadata, number))?;
        let gguf = gguf.ok_or_else(|| ModelError::format(parts.first(), &"it has no parts"))?;
        let metadata = &gguf.metadata;
        if let Some(count) = metadata.size("split.tensors.count", u64::MAX)?
            && count != gguf.tensors.len() as u64
        {
            let there = gguf.tensors.len();
            let problem = format!("is {count}, and {there} tensors are there: download all parts again");
            return Err(metadata.error("split.tensors.count", problem));
        }
        Ok(gguf)
    }

    /// Of these files, the first of which has the metadata; `check` is given those of each, and its number.
    fn of(
        files: impl Iterator<Item = (&'a Path, &'a [u8])>,
        check: impl Fn(&Metadata<'a>, usize) -> Result<(), ModelError>,
    ) -> Result<Option<Gguf<'a>>, ModelError> {
        let mut first: Option<(Metadata<'a>, u32)> = None;
        let mut tensors: HashMap<&'a str, Stored<'a>> = HashMap::new();
        for (number, (path, file)) in files.enumerate() {
            let Header { version, values, tensors: placed } =
                Header::read(file).map_err(|problem| ModelError::format(path, &problem))?;
            let metadata = Metadata::new(path, values);
            check(&metadata, number)?;
            for tensor in placed {
                let data = &file[tensor.bytes];
                match tensors.entry(tensor.name) {
                    Entry::Occupied(known) => {
                        let name = header::shown(tensor.name);
                        let problem = format!("tensor `{name}` is in {} as well", known.get().path.display());
                        return Err(ModelError::format(path, &problem));
                    }
                    Entry::Vacant(free) => {
                        free.insert(Stored { path, format: tensor.format, shape: tensor.shape, data })
                    }
                };
            }
            first.get_or_insert((metadata, version));
        }
        Ok(first.map(|(metadata, version)| Gguf { metadata, version, tensors }))
    }

    fn has(&self, tensor: &str) -> bool {
        self.tensors.contains_key(tensor)
    }
}

impl<'a> Stored<'a> {
    fn source(&self) -> Source<'a> {
        match self.format {
            Format::Plain(stored) => Source::File(stored, self.data),
            Format::Blocks(blocks) => Source::Blocks(blocks, self.data),
        }
    }
}
