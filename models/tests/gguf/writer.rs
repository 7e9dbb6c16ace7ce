//! Writes GGUF files, right ones and wrong ones.

use std::path::{Path, PathBuf};

/// Numbers of ggml's formats.
pub(crate) const F32: u32 = 0;

/// A file that is being made; every part of it may be changed before it is written.
#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    /// Keys, each with its type and value as bytes.
    pub(crate) keys: Vec<(String, Vec<u8>)>,
    pub(crate) tensors: Vec<Written>,
}

/// A tensor; its dimensions are in the order of the file.
#[derive(Clone)]
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) dimensions: Vec<u64>,
    pub(crate) format: u32,
    pub(crate) data: Vec<u8>,
    /// Where it is said to lie, if that is not where it does.
    pub(crate) said_at: Option<u64>,
}

impl Writer {
    pub(crate) fn new(architecture: &str) -> Writer {
        let mut writer = Writer { version: 3, alignment: 32, keys: Vec::new(), tensors: Vec::new() };
        writer.text("general.architecture", architecture);
        writer
    }

    /// Sets a key, in the place of an older value.
    pub(crate) fn set(&mut self, key: &str, of: u32, value: &[u8]) {
        self.remove(key);
        self.keys.push((key.to_owned(), [&of.to_le_bytes(), value].concat()));
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.keys.retain(|(known, _)| known != key);
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.set(key, 8, &text(value));
    }

    pub(crate) fn whole(&mut self, key: &str, value: u32) {
        self.set(key, 4, &value.to_le_bytes());
    }

    pub(crate) fn small(&mut self, key: &str, value: u16) {
        self.set(key, 2, &value.to_le_bytes());
    }

    pub(crate) fn number(&mut self, key: &str, value: f32) {
        self.set(key, 6, &value.to_le_bytes());
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        self.set(key, 7, &[value.into()]);
    }

    fn list(&mut self, key: &str, of: u32, count: usize, values: &[u8]) {
        let head = [&of.to_le_bytes()[..], &(count as u64).to_le_bytes()].concat();
        self.set(key, 9, &[&head, values].concat());
    }

    pub(crate) fn texts<S: AsRef<str>>(&mut self, key: &str, values: &[S]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| text(value.as_ref())).collect();
        self.list(key, 8, values.len(), &bytes);
    }

    pub(crate) fn integers(&mut self, key: &str, values: &[i32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.list(key, 5, values.len(), &bytes);
    }

    pub(crate) fn numbers(&mut self, key: &str, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.list(key, 6, values.len(), &bytes);
    }

    /// Adds a tensor of these rows and columns.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize], format: u32, data: Vec<u8>) {
        let dimensions = shape.iter().rev().map(|size| *size as u64).collect();
        self.tensors.push(Written { name: name.to_owned(), dimensions, format, data, said_at: None });
    }

    pub(crate) fn named(&mut self, tensor: &str) -> &mut Written {
        self.tensors.iter_mut().find(|written| written.name == tensor).unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            bytes.extend(text(key));
            bytes.extend(value);
        }
        let mut at = 0;
        for Written { name, dimensions, format, data, said_at } in &self.tensors {
            bytes.extend(text(name));
            bytes.extend((dimensions.len() as u32).to_le_bytes());
            dimensions.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
            bytes.extend(format.to_le_bytes());
            bytes.extend(said_at.unwrap_or(at as u64).to_le_bytes());
            at += data.len().next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
            bytes.extend(&tensor.data);
        }
        bytes
    }
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

/// A folder for files, gone when it is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("faser-gguf-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// Writes a file, and says where it is.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
