//! The files of a GGUF model, mapped: one, or the parts of a split, `NAME-00001-of-00003.gguf` and so on.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use faser_kernels::MappedFile;

use super::header::{Header, MAGIC};
use super::metadata::Metadata;
use crate::ModelError;
use crate::checkpoint::check_pointer;

/// Whether a path names a GGUF file: by its first bytes, or by its name.
pub(crate) fn is_gguf(path: &Path) -> bool {
    if !path.exists() || path.is_dir() {
        return false;
    }
    let named = path.extension().is_some_and(|own| own.eq_ignore_ascii_case("gguf"));
    let mut beginning = [0; MAGIC.len()];
    // Nobody waits for a pipe.
    let mut begins = || File::open(path).and_then(|mut file| file.read_exact(&mut beginning)).is_ok();
    named || path.is_file() && begins() && beginning == *MAGIC
}

/// All files of a model, of which `first` is the first.
///
/// # Errors
/// It is no GGUF file, or a part that is not the first.
pub(crate) fn paths(first: &Path) -> Result<Vec<PathBuf>, ModelError> {
    check_pointer(first)?;
    let file = map(first)?;
    let header = Header::read(&file).map_err(|problem| ModelError::format(first, &problem))?;
    let metadata = Metadata::new(first, header.values);
    let count = metadata.size(COUNT, u16::MAX.into())?.unwrap_or(1) as usize;
    let number = metadata.size(NUMBER, u16::MAX.into())?.unwrap_or(0) as usize;
    if count <= 1 {
        return Ok(vec![first.to_owned()]);
    }
    let name = first.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let named = |stem: &str, number: usize| format!("{stem}-{:05}-of-{count:05}.gguf", number + 1);
    let Some(stem) = name.strip_suffix(&named("", number)) else {
        let problem = format!(
            "is {number}: the file is part {} of {count}, and its name must end in {}",
            number + 1,
            named("", number)
        );
        return Err(metadata.error(NUMBER, problem));
    };
    if number != 0 {
        let problem = format!(
            "is {number}: the file is part {} of {count}, give the first, {}",
            number + 1,
            named(stem, 0)
        );
        return Err(metadata.error(NUMBER, problem));
    }
    Ok((0..count).map(|number| first.with_file_name(named(stem, number))).collect())
}

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";

/// The files of a model.
pub(crate) struct Parts {
    mapped: Vec<(PathBuf, MappedFile)>,
    first: PathBuf,
}

impl Parts {
    /// Finds and maps the files.
    ///
    /// # Errors
    /// One is not there, or the first is no GGUF file.
    pub(crate) fn map(first: &Path) -> Result<Parts, ModelError> {
        let mut mapped = Vec::new();
        for path in paths(first)? {
            check_pointer(&path)?;
            let file = map(&path)?;
            mapped.push((path, file));
        }
        Ok(Parts { mapped, first: first.to_owned() })
    }

    /// The file that all of them are known by.
    pub(super) fn first(&self) -> &Path {
        &self.first
    }

    /// Each with its path, in their order.
    pub(super) fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.mapped.iter().map(|(path, file)| (path.as_path(), &**file))
    }

    /// Looks that a file is the part that its name says.
    pub(super) fn check_place(&self, metadata: &Metadata<'_>, number: usize) -> Result<(), ModelError> {
        let all = self.mapped.len();
        for (key, wanted) in [(NUMBER, number), (COUNT, all)] {
            let said = metadata.size(key, u16::MAX.into())?.unwrap_or(wanted as u64);
            // One file may say so, or nothing at all.
            if said != wanted as u64 && all > 1 {
                let problem = format!(
                    "is {said}, and the file should be part {} of {all}: download it again",
                    number + 1
                );
                return Err(metadata.error(key, problem));
            }
        }
        Ok(())
    }
}

fn map(path: &Path) -> Result<MappedFile, ModelError> {
    MappedFile::open(path).map_err(|error| ModelError::read(path, error))
}
