//! Policies: how speculative lengths are chosen, as written in config.

use std::fmt;
use std::str::FromStr;

use crate::request::K_LIMIT;

/// How speculative lengths are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `off`: plain decoding, no sequence speculates.
    Off,
    /// `fixed:4`: the same speculative length for everyone, always.
    Fixed {
        /// Proposals per sequence and pass, 1 to [`K_LIMIT`].
        k: usize,
    },
    /// `batch-table:4=6,16=2,64=0`: up to 4 sequences that decode 6 proposals each, up to 16 two, more than that none.
    BatchTable {
        /// (largest batch, k), batches increasing.
        steps: Vec<(usize, usize)>,
    },
    /// `p-min:0.6`: everyone until the survival of the last proposal, by what the draft's confidence has proved to be worth, falls below that;
    /// the one that falls below is still verified. (llama.cpp's `--draft-p-min` asks each token's own probability.)
    PMin {
        /// That survival, in hundredths, 1 to 100. None is ever 1: that is one proposal.
        hundredths: u8,
    },
    /// `budget`: proposals with the highest survival across the batch as long as predicted goodput grows; serial.
    Budget,
    /// `faser`: budget, and drafting overlapped with verification on partitions where that is predicted to pay.
    Faser,
}

macro_rules! mechanisms {
    ($($(#[$doc:meta])* $name:ident: $help:literal, $when:literal;)+) => {
        /// What policies that predict may use; each can be switched off, and so be judged by itself.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Mechanisms {
            $($(#[$doc])* pub $name: bool,)+
        }

        impl Default for Mechanisms {
            /// All of them.
            fn default() -> Mechanisms {
                Mechanisms { $($name: true,)+ }
            }
        }

        impl Mechanisms {
            /// Each as it is switched, in alphabetical order.
            pub const SWITCHES: &[Switch] = &[$(Switch {
                name: stringify!($name),
                help: $help,
                when: $when,
                is_on: |mechanisms| mechanisms.$name,
                set: |mechanisms, on| mechanisms.$name = on,
            },)+];
        }
    };
}

/// A mechanism as it is switched: a key of `speculation` in the config, live.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// Its key.
    pub name: &'static str,
    /// One line on it.
    pub help: &'static str,
    /// From when on a change counts.
    pub when: &'static str,
    /// Whether it may be used.
    pub is_on: fn(&Mechanisms) -> bool,
    /// Switches it.
    pub set: fn(&mut Mechanisms, bool),
}

mechanisms! {
    /// Prompt-lookup (n-gram speculation): proposals from a sequence's own text and from the client's predicted output.
    lookup: "prompt-lookup (n-gram): propose from the text before and from predicted outputs",
        "the next pass; switched on, requests that come from then on";
    /// Draft past the frontier while a verify pass runs.
    overlap: "draft past the frontier while a pass runs", "the next pass";
    /// Test proposals between layers of a verify pass, and take out the rows of those that fail.
    prune: "test proposals between layers of a pass", "the next pass";
    /// Choose how many rows of prompts a pass takes beside sequences that decode.
    sizing: "take no more rows of prompts into a pass than make its rows cheap",
        "the next pass";
    /// Leave proposals that do not pay out of a verify pass.
    trim: "leave proposals that do not pay out of a pass", "the next pass";
}

/// What a policy does, and so what it needs: whoever asks goes by this, not by which policy it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyTraits {
    /// It has the draft lane propose.
    pub drafts: bool,
    /// It decides by predicted goodput, so that it needs cost tables.
    pub predicts: bool,
    /// It may use prompt-lookup ([`Mechanisms::lookup`]), so that it can do without a draft.
    pub lookup: bool,
    /// It may leave proposals out of a pass ([`Mechanisms::trim`]).
    pub trims: bool,
    /// It may test proposals between layers ([`Mechanisms::prune`]).
    pub prunes: bool,
    /// It may draft while a pass runs ([`Mechanisms::overlap`]).
    pub overlaps: bool,
}

/// How a policy comes to the lengths of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// The same for everyone.
    Same(usize),
    /// By predicted goodput across the batch.
    Goodput,
}

impl Policy {
    /// How they are written.
    pub const FORMS: &str = "`off`, `fixed:K` with K from 1 to 16, `batch-table:BATCH=K,BATCH=K` with batches increasing, `p-min:P` with P from 0.01 to 1, `budget` or `faser`";

    /// What it does.
    pub fn traits(&self) -> PolicyTraits {
        let drafts = PolicyTraits { drafts: true, ..PolicyTraits::default() };
        let budget = PolicyTraits { predicts: true, lookup: true, trims: true, ..drafts };
        match self {
            Policy::Off => PolicyTraits::default(),
            Policy::Fixed { .. } | Policy::BatchTable { .. } | Policy::PMin { .. } => drafts,
            Policy::Budget => budget,
            Policy::Faser => PolicyTraits { prunes: true, overlaps: true, ..budget },
        }
    }

    /// How it comes to the lengths of a batch of so many sequences.
    pub(crate) fn lengths(&self, sequences: usize) -> Lengths {
        match self {
            Policy::Off => Lengths::Same(0),
            Policy::Fixed { k } => Lengths::Same(*k),
            Policy::BatchTable { steps } => {
                let step = steps.iter().find(|&&(largest, _)| sequences <= largest);
                Lengths::Same(step.map_or(0, |&(_, k)| k))
            }
            Policy::PMin { .. } => Lengths::Same(K_LIMIT),
            Policy::Budget | Policy::Faser => Lengths::Goodput,
        }
    }

    /// Survival below which a lane drafts no further, where cost does not say it.
    pub(crate) fn floor(&self) -> f32 {
        match self {
            Policy::PMin { hundredths } => f32::from(*hundredths) / 100.0,
            _ => 0.0,
        }
    }

    /// The most proposals it ever gives a sequence.
    pub fn k_max(&self) -> usize {
        match self {
            Policy::Off => 0,
            Policy::Fixed { k } => (*k).min(K_LIMIT),
            Policy::BatchTable { steps } => steps.iter().map(|&(_, k)| k).max().unwrap_or(0).min(K_LIMIT),
            Policy::PMin { .. } | Policy::Budget | Policy::Faser => K_LIMIT,
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let unknown = || format!("unknown policy `{text}`: write {}", Policy::FORMS);
        match text.split_once(':') {
            None => match text {
                "off" => Ok(Policy::Off),
                "budget" => Ok(Policy::Budget),
                "faser" => Ok(Policy::Faser),
                _ => Err(unknown()),
            },
            Some(("fixed", k)) => {
                let k = k.parse().ok().filter(|k| (1..=K_LIMIT).contains(k)).ok_or_else(unknown)?;
                Ok(Policy::Fixed { k })
            }
            Some(("batch-table", steps)) => batch_table(steps).ok_or_else(unknown),
            Some(("p-min", p)) => p_min(p).ok_or_else(unknown),
            Some(_) => Err(unknown()),
        }
    }
}

fn p_min(text: &str) -> Option<Policy> {
    let hundredths = text.parse::<f32>().ok()? * 100.0;
    let whole = (hundredths - hundredths.round()).abs() < 1e-3 && (1.0..=100.0).contains(&hundredths);
    whole.then(|| Policy::PMin { hundredths: hundredths.round() as u8 })
}

fn batch_table(text: &str) -> Option<Policy> {
    let step = |step: &str| -> Option<(usize, usize)> {
        let (batch, k) = step.split_once('=')?;
        Some((batch.parse().ok()?, k.parse().ok().filter(|&k| k <= K_LIMIT)?))
    };
    let steps = text.split(',').map(step).collect::<Option<Vec<_>>>()?;
    steps.is_sorted_by(|a, b| a.0 < b.0).then_some(Policy::BatchTable { steps })
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Off => f.write_str("off"),
            Policy::Fixed { k } => write!(f, "fixed:{k}"),
            Policy::BatchTable { steps } => {
                f.write_str("batch-table:")?;
                for (i, (batch, k)) in steps.iter().enumerate() {
                    write!(f, "{}{batch}={k}", if i > 0 { "," } else { "" })?;
                }
                Ok(())
            }
            Policy::PMin { hundredths } => write!(f, "p-min:{}", f32::from(*hundredths) / 100.0),
            Policy::Budget => f.write_str("budget"),
            Policy::Faser => f.write_str("faser"),
        }
    }
}

// As the forms say it.
const _: () = assert!(K_LIMIT == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_and_written_alike() {
        for text in [
            "off",
            "fixed:1",
            "fixed:16",
            "batch-table:4=6,16=2,64=0",
            "p-min:0.07",
            "p-min:1",
            "budget",
            "faser",
        ] {
            assert_eq!(text.parse::<Policy>().map(|p| p.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "fixed:0",
            "fixed:17",
            "fixed:",
            "fixed",
            "batch-table:",
            "batch-table:4=1,4=2",
            "p-min:0",
            "p-min:1.01",
            "p-min:0.555",
            "p-min:NaN",
            "x",
            "",
        ] {
            assert!(text.parse::<Policy>().is_err(), "{text} was taken");
        }
    }
}
