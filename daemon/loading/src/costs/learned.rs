//! What engines learned of a pair's drafts, kept beside its cost tables over restarts.
//!
//! A file that is damaged, of another format or of another pair is not used: it would only be learned anew. Text never depends on it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use faser_engine::survival::{PerSource, Source};
use faser_engine::{Counts, Learned, LearnedOfSource};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::json_file::{Unusable, path_of, read_json, write_json};

/// Number of the format; another number, another meaning of the fields.
const FORMAT: u64 = 1;
const PREFIX: &str = "learned-";

/// Counts of proposals whose verdict is known, and of those that were accepted: by confidence, and of all together.
#[derive(Deserialize, Serialize)]
struct OfSource {
    bins: Vec<(f64, f64)>,
    all: (f64, f64),
}

/// The file of one pair on one device.
#[derive(Clone, Debug)]
pub struct LearnedFile {
    path: PathBuf,
    key: Value,
}

impl LearnedFile {
    /// Of what a cost table has this key for; `weights` tell models apart that differ in nothing else.
    pub(super) fn new(folder: &Path, costs: &Value, weights: &[String; 2]) -> LearnedFile {
        let key = json!({ "costs": costs, "weights": weights });
        LearnedFile { path: path_of(folder, PREFIX, &key), key }
    }

    /// What is kept; nothing if it cannot be used, which the log says.
    pub fn read(&self) -> Learned {
        match read_json(&self.path, FORMAT, &self.key)
            .and_then(|value| value.map_or(Ok(None), |v| learned(&v).map(Some)))
        {
            Ok(Some(learned)) => {
                tracing::info!(file = %self.path.display(), "begins with what was learned of the drafts before");
                learned
            }
            Ok(None) => Learned::default(),
            Err(why) => {
                tracing::warn!(file = %self.path.display(), %why, "what was learned cannot be used: learning anew");
                Learned::default()
            }
        }
    }

    /// Keeps what was learned. That it cannot be kept is no more than a line of the log.
    pub fn write(&self, learned: &Learned) {
        if let Err(err) = write_json(&self.path, PREFIX, FORMAT, &self.key, content(learned)) {
            tracing::warn!(file = %self.path.display(), %err, "what was learned cannot be kept: the next start learns anew");
        }
    }

    /// Forgets it.
    pub fn forget(&self) {
        match fs::remove_file(&self.path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(file = %self.path.display(), %err, "what was learned cannot be forgotten");
            }
            _ => {}
        }
    }
}

fn name(source: Source) -> &'static str {
    match source {
        Source::Draft => "draft",
        Source::Text => "text",
        Source::Prediction => "prediction",
        Source::Suffix => "suffix",
    }
}

fn content(learned: &Learned) -> Value {
    let counts = |counts: &Counts| (counts.seen, counts.accepted);
    let of = |source| {
        let LearnedOfSource { bins, all } = &learned.0[source];
        json!(OfSource { bins: bins.iter().map(counts).collect(), all: counts(all) })
    };
    let sources: Map<String, Value> =
        Source::ALL.into_iter().map(|source| (name(source).to_owned(), of(source))).collect();
    json!({ "learned": sources })
}

/// Whatever is not there was not learned.
fn learned(value: &Value) -> Result<Learned, Unusable> {
    let mut learned = PerSource::<LearnedOfSource>::default();
    for source in Source::ALL {
        let Some(found) = value["learned"].get(name(source)) else { continue };
        let OfSource { bins, all } = OfSource::deserialize(found)?;
        let counts = |(seen, accepted)| Counts { seen, accepted };
        let all = counts(all);
        let bins: Vec<Counts> = bins.into_iter().map(counts).collect();
        let bins = bins.try_into().map_err(|_| Unusable::Learned { source_name: name(source) })?;
        let of = LearnedOfSource { bins, all };
        if !of.bins.iter().chain([&of.all]).all(Counts::plausible) {
            return Err(Unusable::Learned { source_name: name(source) });
        }
        learned[source] = of;
    }
    Ok(Learned(learned))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Folder;
    use super::*;

    fn some() -> Learned {
        let mut learned = Learned::default();
        for source in Source::ALL {
            let counts =
                |bin| Counts { seen: 3.5 + bin as f64, accepted: 1.0 / 3.0 + source as usize as f64 };
            learned.0[source] = LearnedOfSource { bins: std::array::from_fn(counts), all: counts(100) };
        }
        learned
    }

    fn file(folder: &Folder, weights: [&str; 2]) -> LearnedFile {
        LearnedFile::new(&folder.0, &json!({"device": "a cpu"}), &weights.map(str::to_owned))
    }

    #[test]
    fn what_was_learned_comes_back_exactly_to_its_own_pair_until_it_is_forgotten() {
        let folder = Folder::new("learned");
        let own = file(&folder, ["target", "draft"]);
        own.forget();
        assert_eq!(own.read(), Learned::default());
        own.write(&Learned::default());
        own.write(&some());
        assert_eq!(own.read(), some());
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        for weights in [["target", "another"], ["another", "draft"]] {
            assert_eq!(file(&folder, weights).read(), Learned::default());
        }
        // As if two keys had one hash.
        let mut other = file(&folder, ["target", "another"]);
        other.path.clone_from(&own.path);
        assert_eq!(other.read(), Learned::default());
        own.forget();
        assert_eq!(own.read(), Learned::default());
    }

    #[test]
    fn a_file_that_cannot_be_is_not_used() {
        let folder = Folder::new("learned-damaged");
        let own = file(&folder, ["target", "draft"]);
        own.write(&some());
        let whole: Value = serde_json::from_str(&fs::read_to_string(&own.path).unwrap()).unwrap();
        let changes: [fn(&mut Value); 8] = [
            |file| file["format"] = json!(2),
            |file| file["learned"]["draft"]["all"] = json!([1.0, 2.0]),
            |file| file["learned"]["draft"]["bins"][3] = json!([-1.0, 0.0]),
            |file| file["learned"]["text"]["bins"][3] = json!("many"),
            |file| file["learned"]["text"]["bins"] = json!([]),
            |file| file["learned"]["prediction"] = json!(7),
            |file| file["key"]["costs"]["device"] = json!("another cpu"),
            |file| *file = json!(null),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut value = whole.clone();
            change(&mut value);
            fs::write(&own.path, value.to_string()).unwrap();
            assert_eq!(own.read(), Learned::default(), "{number}");
        }
        let text = whole.to_string();
        for bytes in [&text.as_bytes()[..text.len() / 2], b"", b"\xff\xfe", b"1e999"] {
            fs::write(&own.path, bytes).unwrap();
            assert_eq!(own.read(), Learned::default());
        }
        let mut fewer = whole.clone();
        fewer["learned"].as_object_mut().unwrap().remove("text");
        fs::write(&own.path, fewer.to_string()).unwrap();
        let read = own.read();
        assert_eq!(
            (read.0[Source::Draft], read.0[Source::Text]),
            (some().0[Source::Draft], LearnedOfSource::default())
        );
    }

    #[test]
    fn what_cannot_be_written_is_no_error() {
        let folder = Folder::new("learned-unwritable");
        let own = file(&folder, ["target", "draft"]);
        fs::create_dir_all(own.path.join("full")).unwrap();
        own.write(&some());
        own.forget();
        assert_eq!(own.read(), Learned::default());
    }
}
