//! What the daemon and the process that tries grammars say to each other: JSON, each with its length before it.

use std::io::{self, Read, Write};
use std::time::Duration;

use faser_models::{GrammarError, GrammarProgram};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Bytes of a frame at most: the vocabulary of a model is the longest.
const MAX_FRAME_BYTES: u32 = 256 << 20;

/// What the daemon wants; the vocabulary has gone before.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Order {
    /// Try this grammar within these bounds.
    Try { number: u64, program: Box<GrammarProgram>, bounds: Bounds },
    /// Nobody waits for it any more.
    Stop { number: u64 },
}

/// What one trial may take.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Bounds {
    /// Processor time.
    pub(super) cpu: Duration,
    /// Memory beyond what the process has anyway, its stack not counted, in bytes.
    pub(super) memory_bytes: u64,
}

/// What came of a trial.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Report {
    pub(super) number: u64,
    pub(super) outcome: Outcome,
}

/// How a trial ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) enum Outcome {
    /// It compiled, and has so much memory now, in bytes.
    Fits { bytes: u64 },
    /// The compiler refused it.
    Refused(GrammarError),
    /// It ran into the bound on time, or was stopped.
    TooSlow,
    /// It ran into the bound on memory, or beyond its stack.
    TooLarge,
}

/// Writes a frame with one call, so that those of several processes do not mix as long as they are short (`PIPE_BUF`).
pub(super) fn write(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, value)?;
    let len = u32::try_from(frame.len() - 4).ok().filter(|len| *len <= MAX_FRAME_BYTES);
    let len = len.ok_or_else(|| io::Error::other("a frame is too long"))?;
    frame[..4].copy_from_slice(&len.to_le_bytes());
    to.write_all(&frame)?;
    to.flush()
}

/// Reads a frame; none at the end of the stream.
pub(super) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    match from.read_exact(&mut len) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let len = u32::from_le_bytes(len);
    if len > MAX_FRAME_BYTES {
        return Err(io::Error::other("a frame is too long"));
    }
    let mut frame = vec![0; len as usize];
    from.read_exact(&mut frame)?;
    Ok(Some(serde_json::from_slice(&frame)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_as_they_went() {
        let mut pipe = Vec::new();
        let outcomes =
            [Outcome::Fits { bytes: 7 }, Outcome::Refused(GrammarError::new("é\n")), Outcome::TooLarge];
        for (number, outcome) in (0..).zip(outcomes.clone()) {
            write(&mut pipe, &Report { number, outcome }).expect("a frame can be written");
        }
        let mut from = pipe.as_slice();
        for (number, outcome) in (0..).zip(outcomes) {
            let report: Report = read(&mut from).expect("a frame can be read").expect("there is one");
            assert_eq!((report.number, report.outcome), (number, outcome));
        }
        assert!(read::<Report>(&mut from).expect("the end").is_none());
        assert!(read::<Report>(&mut [1, 0, 0, 0].as_slice()).is_err());
        assert!(read::<Report>(&mut [255, 255, 255, 255, 0].as_slice()).is_err());
    }
}
