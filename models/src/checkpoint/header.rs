//! The header of a safetensors file: which tensors are in it, and where. It comes from anywhere, so nothing of it is believed.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use faser_kernels::Stored;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

/// Bytes in front of the header, which are its length.
const LENGTH_BYTES: usize = 8;
/// The format's own limit.
const MOST_BYTES: usize = 100_000_000;
/// Dimensions of a tensor.
const MOST_DIMENSIONS: usize = 16;
/// The one name that is no tensor.
const METADATA: &str = "__metadata__";

/// The tensors of one file, by name.
#[derive(Debug)]
pub(crate) struct Header {
    tensors: HashMap<String, Placed>,
}

/// A tensor, and its bytes in the file. They are there, and they are as many as its shape takes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placed {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Range<usize>,
}

impl Placed {
    /// How its numbers are stored, if they are floating-point ones that are read.
    pub(crate) fn numbers(&self) -> Option<Stored> {
        match self.dtype.as_str() {
            "F32" => Some(Stored::F32),
            "BF16" => Some(Stored::Bf16),
            "F16" => Some(Stored::F16),
            _ => None,
        }
    }
}

/// The name that a tensor has in a text model by itself; none if it is of images.
fn name_of_text(name: &str) -> Option<String> {
    let within = name.strip_prefix("model.").unwrap_or(name);
    if ["vision_tower.", "multi_modal_projector."].iter().any(|other| within.starts_with(other)) {
        return None;
    }
    // As transformers writes them since its version 5, and as before.
    let newer = name.strip_prefix("model.language_model.").map(|rest| format!("model.{rest}"));
    Some(newer.unwrap_or_else(|| name.strip_prefix("language_model.").unwrap_or(name).to_owned()))
}

/// What the JSON says of a tensor.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// One name of the JSON with what it stands for.
enum Item {
    Tensor(String, Entry),
    Metadata,
}

impl Header {
    /// Reads the header of a file that is all of `file`.
    ///
    /// # Errors
    /// What is wrong with it: too short, no JSON, a tensor that lies outside of the file or over another, bytes that belong to none,
    /// a shape of another size.
    pub(crate) fn read(file: &[u8]) -> Result<Header, String> {
        let truncated =
            |what: &str| format!("it is no safetensors file, or a truncated one: copy it again ({what})");
        let (length, rest) = file
            .split_first_chunk::<LENGTH_BYTES>()
            .ok_or_else(|| truncated("there is no length at its beginning"))?;
        let length = usize::try_from(u64::from_le_bytes(*length))
            .ok()
            .filter(|length| *length <= MOST_BYTES)
            .ok_or_else(|| truncated("its header is said to be larger than 100 MB"))?;
        let (json, data) =
            rest.split_at_checked(length).ok_or_else(|| truncated("it ends within its header"))?;
        let Items(items) = serde_json::from_slice(json).map_err(|err| truncated(&err.to_string()))?;
        let start = LENGTH_BYTES + length;
        let mut tensors = HashMap::with_capacity(items.len());
        let mut metadata = false;
        for item in items {
            let (name, entry) = match item {
                Item::Tensor(name, entry) => (name, entry),
                Item::Metadata if !metadata => {
                    metadata = true;
                    continue;
                }
                Item::Metadata => return Err(format!("`{METADATA}` is there twice")),
            };
            let placed = entry
                .placed(start, data.len())
                .map_err(|problem| format!("tensor `{}` {problem}", shown(&name)))?;
            if tensors.contains_key(&name) {
                return Err(format!("tensor `{}` is there twice", shown(&name)));
            }
            tensors.insert(name, placed);
        }
        let header = Header { tensors };
        header.covers(start..file.len())?;
        header.of_text()
    }

    /// Of a model of images and text its text model, with the names that tensors have where that is published alone.
    fn of_text(self) -> Result<Header, String> {
        let mut tensors = HashMap::with_capacity(self.tensors.len());
        for (name, placed) in self.tensors {
            let Some(text) = name_of_text(&name) else { continue };
            if tensors.insert(text.clone(), placed).is_some() {
                return Err(format!("tensor `{}` is there twice, within `language_model` too", shown(&text)));
            }
        }
        Ok(Header { tensors })
    }

    /// A tensor by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&Placed> {
        self.tensors.get(name)
    }

    /// All of them, in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Placed)> {
        self.tensors.iter()
    }

    /// Each byte belongs to one tensor.
    fn covers(&self, data: Range<usize>) -> Result<(), String> {
        let mut in_order: Vec<(&String, &Placed)> = self.iter().collect();
        in_order.sort_unstable_by_key(|(name, placed)| (placed.bytes.start, placed.bytes.end, *name));
        let mut end = data.start;
        for (name, placed) in in_order {
            let name = shown(name);
            if placed.bytes.start < end {
                return Err(format!("tensor `{name}` lies over another"));
            }
            if placed.bytes.start > end {
                let gap = placed.bytes.start - end;
                return Err(format!("{gap} bytes in front of tensor `{name}` belong to none"));
            }
            end = placed.bytes.end;
        }
        if end != data.end {
            return Err(format!("{} bytes at its end belong to no tensor", data.end - end));
        }
        Ok(())
    }
}

impl Entry {
    /// `start` is where the file's data begins, `bytes` how much of it there is.
    fn placed(self, start: usize, bytes: usize) -> Result<Placed, String> {
        let [from, to] = self.data_offsets;
        if from > to {
            return Err(format!("ends at {to}, before its beginning at {from}"));
        }
        if to > bytes {
            return Err(format!(
                "ends at {to}, and the file has {bytes} bytes of data: it is truncated, copy it again"
            ));
        }
        if self.shape.len() > MOST_DIMENSIONS {
            return Err(format!("has {} dimensions, {MOST_DIMENSIONS} at most are known", self.shape.len()));
        }
        let count = self.shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
        let wanted = count.zip(item_bytes(&self.dtype)).map(|(count, item)| count.checked_mul(item));
        match (count, wanted) {
            (None, _) | (_, Some(None)) => Err("has a shape larger than any memory".to_owned()),
            (_, Some(Some(wanted))) if wanted != to - from => {
                let shape = &self.shape;
                let found = to - from;
                Err(format!(
                    "has {found} bytes, but {shape:?} of {} takes {wanted}",
                    self.dtype.escape_debug()
                ))
            }
            // What this crate cannot read it need not measure: it is refused where a model asks for it.
            _ => Ok(Placed { dtype: self.dtype, shape: self.shape, bytes: start + from..start + to }),
        }
    }
}

/// Bytes of a number; `None` for formats that are not known here.
fn item_bytes(dtype: &str) -> Option<usize> {
    match dtype {
        "F64" | "I64" | "U64" => Some(8),
        "F32" | "I32" | "U32" => Some(4),
        "F16" | "BF16" | "I16" | "U16" => Some(2),
        "F8_E4M3" | "F8_E5M2" | "I8" | "U8" | "BOOL" => Some(1),
        _ => None,
    }
}

/// A name as an error shows it.
fn shown(name: &str) -> String {
    name.chars().take(100).flat_map(char::escape_debug).collect()
}

/// The names in the order of the file, those that are there twice too.
struct Items(Vec<Item>);

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Items, D::Error> {
        deserializer.deserialize_map(ReadItems)
    }
}

struct ReadItems;

impl<'de> Visitor<'de> for ReadItems {
    type Value = Items;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Items, A::Error> {
        let mut items = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            items.push(if name == METADATA {
                map.next_value::<HashMap<String, String>>()?;
                Item::Metadata
            } else {
                let entry = map.next_value()?;
                Item::Tensor(name, entry)
            });
        }
        Ok(Items(items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with this header and so many bytes of data.
    fn file(json: &str, data: usize) -> Vec<u8> {
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(json.as_bytes());
        file.resize(file.len() + data, 7);
        file
    }

    fn tensor(dtype: &str, shape: &str, from: usize, to: usize) -> String {
        format!(r#"{{"dtype": "{dtype}", "shape": {shape}, "data_offsets": [{from}, {to}]}}"#)
    }

    fn refusal(json: &str, data: usize) -> String {
        Header::read(&file(json, data)).unwrap_err()
    }

    #[test]
    fn tensors_are_found_where_they_lie() {
        let json = format!(
            r#"{{"__metadata__": {{"format": "pt"}}, "b": {}, "a": {}, "none": {}, "odd": {}}}  "#,
            tensor("F32", "[2, 3]", 4, 28),
            tensor("BF16", "[2]", 0, 4),
            tensor("F16", "[0, 5]", 28, 28),
            tensor("F6_E3M2", "[4]", 28, 31),
        );
        let file = file(&json, 31);
        let header = Header::read(&file).unwrap();
        let start = 8 + json.len();
        let wanted = Placed { dtype: "F32".to_owned(), shape: vec![2, 3], bytes: start + 4..start + 28 };
        assert_eq!(header.get("b"), Some(&wanted));
        assert_eq!(header.get("a").unwrap().bytes, start..start + 4);
        assert_eq!(header.get("odd").unwrap().bytes.len(), 3);
        assert_eq!((header.iter().count(), header.get("__metadata__")), (4, None));
        assert_eq!(Header::read(&super::tests::file("{}", 0)).unwrap().iter().count(), 0);
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for (file, part) in [
            (vec![], "no length"),
            (vec![0; 7], "no length"),
            (u64::MAX.to_le_bytes().to_vec(), "100 MB"),
            ((1_u64 << 63).to_le_bytes().to_vec(), "100 MB"),
            (100_000_001_u64.to_le_bytes().to_vec(), "100 MB"),
            (100_u64.to_le_bytes().to_vec(), "within its header"),
            (0_u64.to_le_bytes().to_vec(), "EOF"),
            (file("[]", 0), "an object of tensors"),
            (file("\u{0}", 0), "expected value"),
            (file(&"[".repeat(100_000), 0), "an object"),
            (file(&format!("{{\"a\": {}", "[".repeat(100_000)), 0), "column"),
        ] {
            let problem = Header::read(&file).unwrap_err();
            assert!(problem.contains("truncated") && problem.contains(part), "{part}: {problem}");
        }
    }

    #[test]
    fn tensors_that_do_not_fit_are_refused_by_name() {
        let huge = usize::MAX;
        for (tensors, data, part) in [
            (vec![("a", tensor("F32", "[2]", 0, 9))], 8, "`a` ends at 9"),
            (vec![("a", tensor("F32", "[2]", 8, 0))], 8, "before its beginning"),
            (vec![("a", tensor("F32", "[3]", 0, 8))], 8, "takes 12"),
            (vec![("a", tensor("F32", "[]", 0, 8))], 8, "takes 4"),
            (vec![("a", tensor("U8", "[1]", huge, huge))], 8, "ends at 18446744073709551615"),
            (vec![("a", tensor("F32", "[4294967296, 4294967296]", 0, 0))], 0, "larger than any memory"),
            (vec![("a", tensor("F64", "[4611686018427387904]", 0, 0))], 0, "larger than any memory"),
            (vec![("a", tensor("F4", "[4294967296, 4294967296]", 0, 0))], 0, "larger than any memory"),
            (vec![("a", tensor("U8", &format!("{:?}", [1; 17]), 0, 1))], 1, "17 dimensions"),
            (
                vec![("a", tensor("U8", "[5]", 0, 5)), ("b", tensor("U8", "[5]", 4, 9))],
                9,
                "`b` lies over another",
            ),
            (
                vec![("a", tensor("U8", "[5]", 0, 5)), ("b", tensor("U8", "[5]", 0, 5))],
                5,
                "`b` lies over another",
            ),
            (
                vec![("a", tensor("U8", "[5]", 0, 5)), ("b", tensor("U8", "[3]", 6, 9))],
                9,
                "1 bytes in front of tensor `b`",
            ),
            (vec![("a", tensor("U8", "[5]", 0, 5))], 8, "3 bytes at its end"),
            (
                vec![("a", tensor("U8", "[5]", 0, 5)), ("a", tensor("U8", "[5]", 0, 5))],
                5,
                "`a` is there twice",
            ),
            (vec![("a", tensor("U8", "[-1]", 0, 5))], 5, "truncated"),
            (vec![("a", tensor("U8", "[1e3]", 0, 5))], 5, "truncated"),
            (vec![("a", tensor("U8", "[99999999999999999999]", 0, 5))], 5, "truncated"),
            (vec![("a", "{}".to_owned())], 5, "truncated"),
            (vec![("a\\n", tensor("U8", "[5]", 0, 9))], 5, "`a\\n` ends at 9"),
        ] {
            let items: Vec<String> =
                tensors.iter().map(|(name, tensor)| format!("\"{name}\": {tensor}")).collect();
            let problem = refusal(&format!("{{{}}}", items.join(", ")), data);
            assert!(problem.contains(part), "{part}: {problem}");
        }
        assert!(refusal(r#"{"__metadata__": {}, "__metadata__": {}}"#, 0).contains("twice"));
    }
}
