//! The beginning of a GGUF file: its metadata, and which tensors are in it and where. It comes from anywhere, so nothing of it is believed,
//! and what is kept of it points into the file.

use std::collections::HashMap;
use std::ops::Range;

use faser_kernels::{Blocks, Stored};

/// What a file begins with.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";
/// Versions whose layout this is. The first had lengths of 32 bits.
const VERSIONS: [u32; 2] = [2, 3];
/// Keys, and tensors, of a file: real ones have some dozens, and some thousands.
const MOST: u64 = 1 << 16;
/// Dimensions of a tensor, as ggml has them.
const MOST_DIMENSIONS: u32 = 4;
/// Bytes of a name; the format allows 64 of a tensor's, and as many as this of a key.
const MOST_NAME_BYTES: usize = u16::MAX as usize;
/// What a file that does not say it aligns its tensors to.
const ALIGNMENT: u64 = 32;
const MOST_ALIGNMENT: u64 = 1 << 20;

/// The header of one file.
pub(super) struct Header<'a> {
    pub(super) version: u32,
    pub(super) values: HashMap<&'a str, Value<'a>>,
    pub(super) tensors: Vec<Placed<'a>>,
}

/// A tensor, and its bytes in the file. They are there, and they are as many as its shape takes.
pub(super) struct Placed<'a> {
    pub(super) name: &'a str,
    pub(super) format: Format,
    /// Row-major: the file has the dimensions in the other order.
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Range<usize>,
}

/// In what numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Plain(Stored),
    Blocks(Blocks),
}

/// The formats of ggml by their numbers; those that are not read have a name alone.
const FORMATS: [(u32, &str, Option<Format>); 34] = [
    (0, "F32", Some(Format::Plain(Stored::F32))),
    (1, "F16", Some(Format::Plain(Stored::F16))),
    (2, "Q4_0", Some(Format::Blocks(Blocks::Q4_0))),
    (3, "Q4_1", Some(Format::Blocks(Blocks::Q4_1))),
    (6, "Q5_0", Some(Format::Blocks(Blocks::Q5_0))),
    (7, "Q5_1", Some(Format::Blocks(Blocks::Q5_1))),
    (8, "Q8_0", Some(Format::Blocks(Blocks::Q8_0))),
    (9, "Q8_1", None),
    (10, "Q2_K", Some(Format::Blocks(Blocks::Q2K))),
    (11, "Q3_K", Some(Format::Blocks(Blocks::Q3K))),
    (12, "Q4_K", Some(Format::Blocks(Blocks::Q4K))),
    (13, "Q5_K", Some(Format::Blocks(Blocks::Q5K))),
    (14, "Q6_K", Some(Format::Blocks(Blocks::Q6K))),
    (15, "Q8_K", None),
    (16, "IQ2_XXS", None),
    (17, "IQ2_XS", None),
    (18, "IQ3_XXS", None),
    (19, "IQ1_S", None),
    (20, "IQ4_NL", None),
    (21, "IQ3_S", None),
    (22, "IQ2_S", None),
    (23, "IQ4_XS", None),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", None),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", None),
    (30, "BF16", Some(Format::Plain(Stored::Bf16))),
    (31, "Q4_0_4_4", None),
    (32, "Q4_0_4_8", None),
    (33, "Q4_0_8_8", None),
    (34, "TQ1_0", None),
    (39, "MXFP4", None),
];

impl Format {
    /// That of a number, or what to say of one that is not read.
    fn numbered(number: u32) -> Result<Format, String> {
        let known = FORMATS.iter().find(|(known, ..)| *known == number);
        if let Some((.., Some(format))) = known {
            return Ok(*format);
        }
        let own = known.map_or_else(|| format!("type {number} of ggml"), |(_, name, _)| (*name).to_owned());
        let read: Vec<&str> =
            FORMATS.iter().filter_map(|(_, name, format)| format.and(Some(*name))).collect();
        Err(format!(
            "is stored as {own}, which is not read; {} are: take another file of the model, such as its Q4_K_M or Q8_0",
            read.join(", ")
        ))
    }

    /// As ggml calls it.
    pub(super) fn name(self) -> &'static str {
        FORMATS.iter().find(|(.., format)| *format == Some(self)).map_or("", |(_, name, _)| name)
    }

    /// Numbers that cannot be told from each other, and their bytes.
    fn block(self) -> (usize, usize) {
        match self {
            Format::Plain(stored) => (1, stored.bytes()),
            Format::Blocks(blocks) => (blocks.numbers(), blocks.bytes()),
        }
    }
}

/// What a key of the metadata says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(&'a [u8]),
    List(List<'a>),
}

/// Values of one type, where they lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<'a> {
    of: Type,
    pub(super) len: usize,
    bytes: &'a [u8],
}

/// The types of values by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl Type {
    const ALL: [Type; 13] = [
        Type::U8,
        Type::I8,
        Type::U16,
        Type::I16,
        Type::U32,
        Type::I32,
        Type::F32,
        Type::Bool,
        Type::Text,
        Type::List,
        Type::U64,
        Type::I64,
        Type::F64,
    ];
}

impl<'a> Header<'a> {
    /// Reads the header of a file that is all of `file`.
    ///
    /// # Errors
    /// What is wrong with it: it ends too early, a key is there twice or has no known type, a tensor is of a format that is not read, or
    /// lies outside of the file or over another.
    pub(super) fn read(file: &'a [u8]) -> Result<Header<'a>, String> {
        let mut reader = Reader { file, at: 0 };
        let version = version(&mut reader)?;
        let tensors = reader.count("tensors")?;
        let keys = reader.count("keys")?;
        let mut values = HashMap::new();
        for _ in 0..keys {
            let key = reader.name("a key")?;
            let of = |problem| format!("`{}` {problem}", shown(key));
            let value = reader.value().map_err(of)?;
            if values.insert(key, value).is_some() {
                return Err(of("is there twice".to_owned()));
            }
        }
        let mut listed = Vec::new();
        for _ in 0..tensors {
            listed.push(Listed::read(&mut reader)?);
        }
        let alignment = alignment(&values)?;
        let start = (reader.at as u64).next_multiple_of(alignment);
        let placed = listed.into_iter().map(|listed| {
            let name = listed.name;
            listed
                .placed(start, alignment, file.len() as u64)
                .map_err(|problem| format!("tensor `{}` {problem}", shown(name)))
        });
        let tensors = placed.collect::<Result<Vec<Placed<'_>>, String>>()?;
        apart(&tensors)?;
        Ok(Header { version, values, tensors })
    }
}

fn version(reader: &mut Reader<'_>) -> Result<u32, String> {
    let begins = reader.bytes(MAGIC.len()).unwrap_or_default();
    if begins != MAGIC {
        return Err("it is no GGUF file: such begin with GGUF".to_owned());
    }
    let version = u32::from_le_bytes(reader.array()?);
    match version {
        known if VERSIONS.contains(&known) => Ok(version),
        1 => Err("it is of version 1 of GGUF, and 2 and 3 are read: convert the model anew".to_owned()),
        other if VERSIONS.contains(&other.swap_bytes()) => {
            Err("it is a GGUF file of a big-endian machine: convert the model anew".to_owned())
        }
        other => Err(format!("it is of version {other} of GGUF, and 2 and 3 are read")),
    }
}

fn alignment(values: &HashMap<&str, Value<'_>>) -> Result<u64, String> {
    match values.get("general.alignment") {
        None => Ok(ALIGNMENT),
        Some(Value::Unsigned(bytes)) if bytes.is_power_of_two() && *bytes <= MOST_ALIGNMENT => Ok(*bytes),
        Some(other) => Err(format!(
            "`general.alignment` is {}, a power of two up to {MOST_ALIGNMENT} is expected",
            other.shown()
        )),
    }
}

/// No two tensors lie over each other, or have one name.
fn apart(tensors: &[Placed<'_>]) -> Result<(), String> {
    let mut in_order: Vec<&Placed<'_>> = tensors.iter().collect();
    in_order.sort_unstable_by_key(|placed| (placed.bytes.start, placed.bytes.end, placed.name));
    let pairs = || in_order.iter().zip(in_order.iter().skip(1));
    if let Some((before, placed)) = pairs().find(|(a, b)| a.bytes.end > b.bytes.start) {
        return Err(format!("tensor `{}` lies over tensor `{}`", shown(placed.name), shown(before.name)));
    }
    in_order.sort_unstable_by_key(|placed| placed.name);
    let mut pairs = in_order.iter().zip(in_order.iter().skip(1));
    match pairs.find(|(a, b)| a.name == b.name) {
        Some((twice, _)) => Err(format!("tensor `{}` is there twice", shown(twice.name))),
        None => Ok(()),
    }
}

/// A tensor as the list has it.
struct Listed<'a> {
    name: &'a str,
    dimensions: Vec<u64>,
    format: u32,
    offset: u64,
}

impl<'a> Listed<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Listed<'a>, String> {
        let name = reader.name("a tensor")?;
        let count = u32::from_le_bytes(reader.array()?);
        if count > MOST_DIMENSIONS {
            let name = shown(name);
            return Err(format!(
                "tensor `{name}` has {count} dimensions, {MOST_DIMENSIONS} at most are known"
            ));
        }
        let mut dimensions = Vec::new();
        for _ in 0..count {
            dimensions.push(u64::from_le_bytes(reader.array()?));
        }
        let format = u32::from_le_bytes(reader.array()?);
        Ok(Listed { name, dimensions, format, offset: u64::from_le_bytes(reader.array()?) })
    }

    /// `start` is where the file's data begins, and `file` its bytes.
    fn placed(self, start: u64, alignment: u64, file: u64) -> Result<Placed<'a>, String> {
        let format = Format::numbered(self.format)?;
        let (numbers, bytes) = format.block();
        let row = self.dimensions.first().copied().unwrap_or(1);
        let count = self.dimensions.iter().try_fold(1_u64, |count, size| count.checked_mul(*size));
        let count = count.ok_or("has a shape larger than any memory")?;
        if count == 0 {
            return Err("has a dimension of 0".to_owned());
        }
        if !row.is_multiple_of(numbers as u64) {
            return Err(format!("has rows of {row} numbers, and {} has blocks of {numbers}", format.name()));
        }
        if !self.offset.is_multiple_of(alignment) {
            return Err(format!("lies at {}, and tensors are aligned to {alignment}", self.offset));
        }
        let begin = start.checked_add(self.offset);
        let wanted = (count / numbers as u64).checked_mul(bytes as u64);
        let end = begin.zip(wanted).and_then(|(begin, wanted)| begin.checked_add(wanted));
        let (Some(begin), Some(end)) = (begin, end.filter(|end| *end <= file)) else {
            return Err(format!(
                "ends outside of the file, which has {file} bytes: it is truncated, copy it again"
            ));
        };
        let size = |x: u64| usize::try_from(x).map_err(|_| "is larger than any memory".to_owned());
        let shape = self.dimensions.iter().rev().map(|dimension| size(*dimension));
        Ok(Placed {
            name: self.name,
            format,
            shape: shape.collect::<Result<_, String>>()?,
            bytes: size(begin)?..size(end)?,
        })
    }
}

/// Reads a file from its beginning on, and no further than its end.
struct Reader<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.file.len());
        let end = end.ok_or("it ends within its header: it is truncated, copy it again")?;
        let bytes = &self.file[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.bytes(N).map(|bytes| bytes.try_into().unwrap_or([0; N]))
    }

    fn count(&mut self, what: &str) -> Result<u64, String> {
        let count = u64::from_le_bytes(self.array()?);
        match count <= MOST {
            true => Ok(count),
            false => {
                Err(format!("it is said to have {count} {what}, {MOST} at most are read: it is damaged"))
            }
        }
    }

    fn text(&mut self) -> Result<&'a [u8], String> {
        let length = u64::from_le_bytes(self.array()?);
        // More than there is room for is more than there is.
        self.bytes(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn name(&mut self, what: &str) -> Result<&'a str, String> {
        let name = self.text()?;
        if name.len() > MOST_NAME_BYTES {
            return Err(format!("the name of {what} has {} bytes: it is damaged", name.len()));
        }
        std::str::from_utf8(name).map_err(|_| format!("the name of {what} is not UTF-8: it is damaged"))
    }

    fn kind(&mut self) -> Result<Type, String> {
        let number = u32::from_le_bytes(self.array()?);
        let known = Type::ALL.get(number as usize).copied();
        known.ok_or_else(|| format!("has type {number}, and there is none: it is damaged"))
    }

    fn value(&mut self) -> Result<Value<'a>, String> {
        let of = self.kind()?;
        if of != Type::List {
            return self.single(of);
        }
        let of = self.kind()?;
        let len = u64::from_le_bytes(self.array()?);
        let start = self.at;
        match of.bytes() {
            Some(each) => {
                let all = usize::try_from(len).ok().and_then(|len| len.checked_mul(each));
                self.bytes(all.unwrap_or(usize::MAX))?;
            }
            None if of == Type::List => return Err("is a list of lists, which is not read".to_owned()),
            None => {
                for _ in 0..len {
                    self.text()?;
                }
            }
        }
        Ok(Value::List(List { of, len: len as usize, bytes: &self.file[start..self.at] }))
    }

    fn single(&mut self, of: Type) -> Result<Value<'a>, String> {
        Ok(match of {
            Type::U8 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            Type::I8 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            Type::U16 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            Type::I16 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            Type::U32 => Value::Unsigned(u32::from_le_bytes(self.array()?).into()),
            Type::I32 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            Type::F32 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            Type::Bool => match self.array()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(format!("is {other}, and true is 1: it is damaged")),
            },
            Type::Text => Value::Text(self.text()?),
            Type::U64 => Value::Unsigned(u64::from_le_bytes(self.array()?)),
            Type::I64 => Value::Signed(i64::from_le_bytes(self.array()?)),
            Type::F64 => Value::Float(f64::from_le_bytes(self.array()?)),
            Type::List => return Err("is a list of lists, which is not read".to_owned()),
        })
    }
}

impl Type {
    /// Bytes of a value; none of those whose length stands before them.
    fn bytes(self) -> Option<usize> {
        match self {
            Type::U8 | Type::I8 | Type::Bool => Some(1),
            Type::U16 | Type::I16 => Some(2),
            Type::U32 | Type::I32 | Type::F32 => Some(4),
            Type::U64 | Type::I64 | Type::F64 => Some(8),
            Type::Text | Type::List => None,
        }
    }
}

impl Value<'_> {
    /// As an error shows it.
    pub(super) fn shown(&self) -> String {
        match self {
            Value::Unsigned(x) => x.to_string(),
            Value::Signed(x) => x.to_string(),
            Value::Float(x) => x.to_string(),
            Value::Bool(x) => x.to_string(),
            Value::Text(text) => format!("\"{}\"", shown(&String::from_utf8_lossy(text))),
            Value::List(list) => format!("a list of {}", list.len),
        }
    }
}

impl<'a> List<'a> {
    /// Its values, in their order. What is wrong with one was found when the header was read, but for truth values.
    pub(super) fn values(self) -> impl Iterator<Item = Value<'a>> {
        let mut reader = Reader { file: self.bytes, at: 0 };
        (0..self.len).map_while(move |_| reader.single(self.of).ok())
    }
}

/// A name as an error shows it.
pub(super) fn shown(name: &str) -> String {
    name.chars().take(100).flat_map(char::escape_debug).collect()
}
