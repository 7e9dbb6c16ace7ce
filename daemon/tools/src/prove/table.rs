//! What `faser prove` found: a line for each way, with its hash.

use std::fmt;
use std::time::Duration;

use faser_engine::TokenId;
use ring::digest::{Context, SHA256};

/// Bytes of a hash that are shown.
const SHOWN: usize = 8;

/// Of a predicted output every token of this number is another one, so that it is left and found again.
const MISPREDICTED: usize = 9;

/// What a request got.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) tokens: Vec<TokenId>,
    pub(super) text: String,
    /// Proposals that were verified.
    pub(super) proposed: usize,
    /// Those of them that were accepted.
    pub(super) accepted: usize,
}

impl Answer {
    /// A prediction of it that is wrong here and there.
    pub(super) fn nearly(&self) -> Vec<TokenId> {
        let wrong = |(at, &token): (usize, &TokenId)| {
            // The one before it: there is such a token, and mostly another one is right.
            if at % MISPREDICTED == MISPREDICTED - 1 { self.tokens[at - 1] } else { token }
        };
        self.tokens.iter().enumerate().map(wrong).collect()
    }
}

/// A way in which all requests were run.
pub(super) struct Way {
    pub(super) source: String,
    k: usize,
    streams: usize,
    took: Duration,
    /// Proposals that were verified, and those accepted; none where nobody says.
    proposals: Option<(usize, usize)>,
    hash: String,
}

impl Way {
    pub(super) fn new(source: &str, k: usize, streams: usize, took: Duration, answers: &[Answer]) -> Way {
        let sum = |count: fn(&Answer) -> usize| answers.iter().map(count).sum();
        let proposals = Some((sum(|answer| answer.proposed), sum(|answer| answer.accepted)));
        Way { source: source.to_owned(), k, streams, took, proposals, hash: hash(answers) }
    }

    /// The same where nobody says what was proposed.
    pub(super) fn unobserved(self) -> Way {
        Way { proposals: None, ..self }
    }
}

/// SHA-256 over tokens and text of all answers, each behind its length.
fn hash(answers: &[Answer]) -> String {
    let mut context = Context::new(&SHA256);
    for Answer { tokens, text, .. } in answers {
        context.update(&(tokens.len() as u64).to_le_bytes());
        tokens.iter().for_each(|token| context.update(&token.to_le_bytes()));
        context.update(&(text.len() as u64).to_le_bytes());
        context.update(text.as_bytes());
    }
    context.finish().as_ref().iter().take(SHOWN).map(|byte| format!("{byte:02x}")).collect()
}

/// All of them; each is held against the first.
pub(super) struct Proof {
    title: String,
    /// The draft model of the ways that are added, where it is not the pair's own.
    pub(super) draft: Option<String>,
    ways: Vec<Way>,
}

impl Proof {
    pub(super) fn new(title: String) -> Proof {
        eprintln!("{title}");
        Proof { title, draft: None, ways: Vec::new() }
    }

    /// One more, which is told of at once.
    pub(super) fn add(&mut self, mut way: Way) {
        if let Some(draft) = &self.draft {
            way.source = format!("{}: {draft}", way.source);
        }
        eprintln!("  {}, k {}, {}: {}", way.source, way.k, streams(way.streams), way.hash);
        self.ways.push(way);
    }

    /// Whether all wrote the same.
    pub(super) fn same(&self) -> bool {
        self.ways.windows(2).all(|pair| pair[0].hash == pair[1].hash)
    }
}

fn streams(count: usize) -> String {
    if count == 1 { "1 stream".to_owned() } else { format!("{count} streams") }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        let wide = self.ways.iter().map(|way| way.source.chars().count()).max().unwrap_or(0);
        writeln!(f, "{:wide$}   k  streams  accepted of proposals  seconds  hash", "way")?;
        let first = self.ways.first().map(|way| way.hash.as_str());
        for (number, way) in self.ways.iter().enumerate() {
            let Way { source, k, streams, took, proposals, hash } = way;
            let proposals = match proposals {
                Some((_, _)) if *k == 0 => "-".to_owned(),
                Some((proposed, accepted)) => format!("{accepted} of {proposed}"),
                None => "-".to_owned(),
            };
            let verdict = match first == Some(hash.as_str()) {
                _ if number == 0 => "",
                true => "  same",
                false => "  DIFFERS",
            };
            let seconds = took.as_secs_f64();
            writeln!(
                f,
                "{source:wide$}  {k:>2}  {streams:>7}  {proposals:>21}  {seconds:>7.1}  {hash}{verdict}"
            )?;
        }
        let other = self.ways.iter().filter(|way| first != Some(way.hash.as_str())).count();
        match other {
            0 => write!(f, "\nEvery way wrote the same bytes."),
            other => write!(f, "\n{other} of {} ways wrote other bytes than the first.", self.ways.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(source: &str, text: &str) -> Way {
        let answer = Answer { tokens: vec![1, 2], text: text.to_owned(), proposed: 5, accepted: 3 };
        Way::new(source, 8, 64, Duration::from_millis(1500), &[answer])
    }

    #[test]
    fn a_way_that_differs_is_told_and_counts() {
        let mut proof = Proof::new("a title".to_owned());
        proof.add(way("one", "x"));
        proof.add(way("two", "x"));
        assert!(proof.same() && proof.to_string().ends_with("\nEvery way wrote the same bytes."), "{proof}");
        proof.draft = Some("pard".to_owned());
        proof.add(way("three", "y").unobserved());
        let told = proof.to_string();
        assert!(!proof.same() && told.ends_with("\n1 of 3 ways wrote other bytes than the first."), "{told}");
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines[4].contains("3 of 5") && lines[4].ends_with("  same"), "{told}");
        assert!(lines[5].starts_with("three: pard   8       64  "), "{told}");
        assert!(lines[5].ends_with("  DIFFERS") && !lines[5].contains("of 5"), "{told}");
    }

    #[test]
    fn a_prediction_is_wrong_here_and_there() {
        let answer = Answer { tokens: (0..20).collect(), ..Answer::default() };
        let nearly = answer.nearly();
        let wrong: Vec<usize> = (0..20).filter(|&at| nearly[at] != answer.tokens[at]).collect();
        assert_eq!(wrong, [8, 17]);
    }

    #[test]
    fn tokens_texts_and_where_one_ends_are_in_the_hash() {
        let answer = |tokens: &[u32], text: &str| Answer {
            tokens: tokens.to_vec(),
            text: text.to_owned(),
            ..Answer::default()
        };
        let all = [
            hash(&[answer(&[1, 2], "ab")]),
            hash(&[answer(&[1, 3], "ab")]),
            hash(&[answer(&[1, 2], "ac")]),
            hash(&[answer(&[1], "ab"), answer(&[2], "")]),
            hash(&[answer(&[1, 2], "a"), answer(&[], "b")]),
        ];
        for (number, one) in all.iter().enumerate() {
            assert!(one.len() == 2 * SHOWN && !all[..number].contains(one), "{all:?}");
        }
    }
}
