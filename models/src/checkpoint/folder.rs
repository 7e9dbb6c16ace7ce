//! What somebody gave in the place of a model's folder, and what to do about it: said where the folder turns out to be no model.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::ModelError;

/// What the file in the place of one that is kept elsewhere begins with.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// Why `dir` is no folder of a model, if that can be told: it is looked at when a file of it is missing.
pub(crate) fn why_not(dir: &Path) -> Option<ModelError> {
    let said = |problem: String| Some(ModelError::NoModel { path: dir.to_owned(), problem });
    if !dir.exists() {
        return said(match hub_name(dir) {
            Some(name) => format!(
                "is not there: if `{name}` is the name of a model on the Hugging Face hub, write hf://{name}"
            ),
            None => {
                "is not there: give a model's folder, with config.json, tokenizer.json and safetensors files, or a GGUF file"
                    .to_owned()
            }
        });
    }
    if dir.is_file() {
        let folder = dir.parent().map_or_else(String::new, |folder| folder.display().to_string());
        return said(format!(
            "is a file: give the folder that it lies in ({folder}), with config.json and tokenizer.json beside it"
        ));
    }
    let Ok(entries) = fs::read_dir(dir) else { return None };
    let names: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    let has = |name: &str| names.iter().any(|known| known == name);
    let any = |extension: &str| names.iter().any(|name| named(Path::new(name), extension));
    let problem = if names.is_empty() {
        "is empty: download the model's files into it".to_owned()
    } else if has("snapshots") || names.iter().any(|name| name.starts_with("models--")) {
        let snapshot = snapshot(dir)
            .map_or_else(|| "models--…/snapshots/…".to_owned(), |path| path.display().to_string());
        format!(
            "is of the hub's cache, where each version of a model has a folder of its own: give that, {snapshot}"
        )
    } else if has("adapter_config.json") || has("adapter_model.safetensors") {
        "is a LoRA adapter, which is served merged alone: merge it into its base model (`merge_and_unload` of peft) and give that folder".to_owned()
    } else if any("gguf") && !any("safetensors") {
        let mut files: Vec<&String> = names.iter().filter(|name| named(Path::new(name), "gguf")).collect();
        files.sort();
        let first = files.first().map_or_else(|| dir.to_owned(), |name| dir.join(name));
        format!("holds GGUF files: give one of them, such as {}", first.display())
    } else if !any("safetensors") && names.iter().any(|name| is_torch(name)) {
        "holds weights for PyTorch alone (pytorch_model.bin), which can run code when they are read: take the safetensors files of the same model, or convert them (`save_pretrained` of transformers writes those of a model; those of a draft's head, which is none, `torch.load(FILE, weights_only=True)` and `safetensors.torch.save_file`)".to_owned()
    } else if !has("tokenizer.json") && has("tokenizer.model") && has("config.json") && any("safetensors") {
        "has tokenizer.model alone: make tokenizer.json of it (`AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` of transformers)".to_owned()
    } else {
        return None;
    };
    said(problem)
}

/// What is wrong with a small file that was to be a large one: it only says where that is kept. And with what is no file at all, such as a pipe, on
/// which whoever opens it would wait.
pub(crate) fn check_pointer(path: &Path) -> Result<(), ModelError> {
    if path.exists() && !path.is_file() && !path.is_dir() {
        return Err(ModelError::format(path, &"it is not a regular file"));
    }
    if !begins(path, LFS_POINTER) {
        return Ok(());
    }
    let problem =
        "it is a pointer of Git LFS, not the file: run `git lfs pull` in its folder, or download it again";
    Err(ModelError::format(path, &problem))
}

/// The last two parts of a path, if they look like the name of a model on the hub.
fn hub_name(path: &Path) -> Option<String> {
    let word = |part: Option<&OsStr>| {
        let part = part?.to_str()?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        (!part.is_empty() && part.chars().all(plain)).then(|| part.to_owned())
    };
    let (name, owner) = (word(path.file_name())?, word(path.parent()?.file_name())?);
    // Whose folder is there, but not the model's, has mistyped it.
    (!path.parent()?.exists()).then(|| format!("{owner}/{name}"))
}

/// The first snapshot, by name, in a model's folder of the cache, or in the cache itself.
fn snapshot(dir: &Path) -> Option<PathBuf> {
    let folders = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
        let mut folders: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        folders.sort();
        folders
    };
    let own = dir.join("snapshots");
    let all = if own.is_dir() {
        vec![own]
    } else {
        folders(dir).into_iter().map(|model| model.join("snapshots")).collect()
    };
    all.iter().flat_map(|snapshots| folders(snapshots)).next()
}

fn named(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own.eq_ignore_ascii_case(extension))
}

fn is_torch(name: &str) -> bool {
    name.starts_with("pytorch_model") || ["pt", "pth"].iter().any(|own| named(Path::new(name), own))
}

fn begins(path: &Path, with: &[u8]) -> bool {
    let mut beginning = vec![0; with.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut beginning)).is_ok() && beginning == with
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;

    /// Gone when it is dropped.
    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    impl Folder {
        fn of(name: &str, files: &[&str]) -> Folder {
            let dir = std::env::temp_dir().join(format!("faser-folder-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            for file in files {
                let path = dir.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "{}").unwrap();
            }
            Folder(dir)
        }

        fn path(&self) -> &Path {
            &self.0
        }
    }

    fn said(dir: &Path) -> String {
        ModelConfig::load(dir).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_model_is_told_what_it_is_and_what_to_do() {
        for (number, (files, part)) in [
            (&[][..], "is empty"),
            (&["adapter_config.json", "adapter_model.safetensors"], "LoRA adapter"),
            (&["qwen-q4.gguf"], "give one of them, such as "),
            (&["models--a--b/snapshots/123/config.json"], "models--a--b/snapshots/123"),
            (&["refs/main", "snapshots/456/config.json"], "snapshots/456"),
            (&["pytorch_model.bin", "tokenizer.json"], "save_pretrained"),
        ]
        .into_iter()
        .enumerate()
        {
            let dir = Folder::of(&number.to_string(), files);
            let said = said(dir.path());
            assert!(
                said.contains(part) && said.contains(&dir.path().display().to_string()),
                "{part}: {said}"
            );
        }
        let dir = Folder::of("weights", &["model.safetensors", "tokenizer.json"]);
        assert!(said(&dir.path().join("model.safetensors")).contains("is a file: give the folder"));
        fs::write(dir.path().join("weights"), b"GGUF\x03").unwrap();
        assert!(said(&dir.path().join("weights")).contains("truncated"));
        assert!(said(&dir.path().join("Qwen/Qwen3-0.6B")).contains("write hf://Qwen/Qwen3-0.6B"));
        assert!(said(&dir.path().join("mistyped")).contains("is not there: give a model's folder"));
        // What is simply not there is named.
        assert!(said(dir.path()).contains("cannot read") && said(dir.path()).contains("config.json"));
    }

    #[test]
    fn a_pointer_is_not_the_file() {
        let dir = Folder::of("pointer", &[]);
        let path = dir.path().join("model.safetensors");
        fs::write(&path, "version https://git-lfs.example/spec/v1\noid sha256:0\nsize 1\n").unwrap();
        assert!(check_pointer(&path).unwrap_err().to_string().contains("git lfs pull"));
        fs::write(&path, "ver").unwrap();
        check_pointer(&path).unwrap();
    }

    #[test]
    fn a_name_of_a_file_breaks_no_line_of_an_error() {
        let (path, tensor) = (PathBuf::from("x"), "a\nerror: b\u{1b}[31m".to_owned());
        let said = ModelError::UnexpectedTensor { path, tensor, hint: String::new() }.to_string();
        assert!(!said.contains(['\n', '\u{1b}']), "{said}");
    }

    #[test]
    fn a_config_without_bounds_is_not_read() {
        let dir = Folder::of("large", &["config.json"]);
        let file = fs::File::options().write(true).open(dir.path().join("config.json")).unwrap();
        // A hole, which takes no room.
        file.set_len((64 << 20) + 1).unwrap();
        assert!(said(dir.path()).contains("more than 64 MiB"), "{}", said(dir.path()));
    }

    #[test]
    fn nobody_waits_for_a_pipe() {
        let dir = Folder::of("pipe", &[]);
        let pipe = |name: &str| {
            let made = std::process::Command::new("mkfifo").arg(dir.path().join(name)).status();
            assert!(made.unwrap().success());
        };
        pipe("config.json");
        assert!(said(dir.path()).contains("not a regular file"));
        fs::remove_file(dir.path().join("config.json")).unwrap();
        // Heads are told from models by their tensors.
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        pipe("model.safetensors");
        let said = said(dir.path());
        assert!(said.contains("model.safetensors") && said.contains("not a regular file"), "{said}");
    }
}
