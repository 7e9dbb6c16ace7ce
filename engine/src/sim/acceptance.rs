//! When the draft is right: a probability per token that depends on the class of the text, on the request and on the place
//! in it, and what the draft itself believes of it.
//!
//! In log-odds, the draft's token at a place of a text is right with
//!
//! ```text
//!   class  +  request  +  slow drift, over 64 tokens  +  passage, 6 tokens of one difficulty  +  token
//! ```
//! each part normal and a function of (seed, prefix) alone, so that a text and its drafts never depend on the schedule.
//! The draft sees all but its own mistakes: its confidence is those log-odds, stretched (it is overconfident) and blurred.

use super::kv::Origin;
use super::phrases::Phrases;
use super::random::{mix, normal, uniform};
use crate::request::CANDIDATES;

/// A class of texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextClass {
    /// Its name.
    pub name: &'static str,
    /// The middle request's probability of acceptance per token, 0 to 1.
    pub acceptance: f64,
    /// Share of the requests.
    pub share: f64,
    /// What they are made of.
    pub phrases: Phrases,
}

/// How a draft's rightness is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Acceptance {
    /// The same for all requests; confidence is exact, spread evenly around it.
    Even(f64),
    /// By class, request and place. A request's first token, modulo the number of classes, is its class, unless prompts begin alike.
    Classes(Vec<TextClass>),
    /// As often right, but the draft is upside down about itself: sure where it is mostly wrong, unsure where it is mostly right.
    Inverted(Box<Acceptance>),
}

impl From<f64> for Acceptance {
    fn from(acceptance: f64) -> Acceptance {
        Acceptance::Even(acceptance)
    }
}

/// Deviations of the parts, in log-odds.
const REQUEST: f64 = 0.5;
const DRIFT: f64 = 0.4;
const PASSAGE: f64 = 0.7;
const TOKEN: f64 = 1.0;
/// Tokens over which drift turns, and which a passage has.
const DRIFT_TOKENS: u32 = 64;
const PASSAGE_TOKENS: u32 = 6;
/// The draft's log-odds of itself: stretched, shifted, blurred.
const STRETCH: f64 = 1.3;
const SHIFT: f64 = 0.4;
const BLUR: f64 = 0.8;

impl Acceptance {
    /// A mix as of a chat service: the classes' middles are guesses in the order of public measurements.
    pub fn mixed() -> Acceptance {
        let class = |name, acceptance, share| TextClass { name, acceptance, share, phrases: Phrases::None };
        Acceptance::Classes(vec![
            class("chat", 0.74, 0.45),
            class("code", 0.87, 0.20),
            class("maths", 0.88, 0.10),
            class("summarise", 0.79, 0.15),
            class("translate", 0.70, 0.05),
            class("poetry", 0.55, 0.05),
        ])
    }

    /// One class alone.
    pub fn only(name: &'static str, acceptance: f64) -> Acceptance {
        Acceptance::Classes(vec![TextClass { name, acceptance, share: 1.0, phrases: Phrases::None }])
    }

    /// Texts that the draft knows best, that quote their prompt, and that say what others have said: each in a mix of the given shares.
    pub fn repeating(novel: f64, quotes: f64, recurring: f64) -> Acceptance {
        let class = |name, acceptance, share, phrases| TextClass { name, acceptance, share, phrases };
        Acceptance::Classes(vec![
            class("novel", 0.85, novel, Phrases::None),
            class("quotes", 0.6, quotes, Phrases::OfRequest),
            class("recurring", 0.6, recurring, Phrases::OfClass),
        ])
    }

    /// What a text that begins with this token is made of.
    pub(super) fn phrases(&self, class: u32) -> Phrases {
        match self {
            Acceptance::Even(_) => Phrases::None,
            Acceptance::Classes(classes) => classes
                .get(class as usize % classes.len().max(1))
                .map_or(Phrases::None, |class| class.phrases),
            Acceptance::Inverted(of) => of.phrases(class),
        }
    }

    /// How often the target's token is the draft's next candidate, the one after that, and so on, given that the draft's token is wrong.
    pub(super) fn ranks(&self) -> [f64; CANDIDATES] {
        RANKS
    }

    /// The same draft, its confidence inverted.
    #[must_use]
    pub fn inverted(self) -> Acceptance {
        Acceptance::Inverted(Box::new(self))
    }

    /// The classes and their shares; one without a name if there are none.
    pub fn classes(&self) -> Vec<TextClass> {
        match self {
            Acceptance::Even(acceptance) => {
                vec![TextClass { name: "even", acceptance: *acceptance, share: 1.0, phrases: Phrases::None }]
            }
            Acceptance::Classes(classes) => classes.clone(),
            Acceptance::Inverted(of) => of.classes(),
        }
    }

    /// Whether the draft's token after this prefix is right, and its confidence in it.
    pub(super) fn draw(&self, seed: u64, prefix: u64, origin: &Origin) -> (bool, f32) {
        let (right, confidence) = match self {
            Acceptance::Inverted(of) => {
                let (right, confidence) = of.draw(seed, prefix, origin);
                return (right, 1.0 - confidence);
            }
            Acceptance::Even(acceptance) => {
                let spread = 0.8 * acceptance.min(1.0 - acceptance);
                let probability = acceptance + spread * (2.0 * uniform(prefix ^ seed.rotate_left(9)) - 1.0);
                (probability, probability)
            }
            Acceptance::Classes(classes) => {
                let odds = log_odds(classes, seed, prefix, origin);
                let belief = STRETCH * odds + SHIFT + BLUR * normal(prefix ^ seed.rotate_left(33));
                (logistic(odds), logistic(belief))
            }
        };
        (uniform(prefix.rotate_left(17) ^ !seed) < right, confidence as f32)
    }
}

/// As measured with the demo pair at temperature 0.7 (docs/results/2026-11-25-outcomes.md), rounded.
const RANKS: [f64; CANDIDATES] = [0.37, 0.16, 0.09, 0.06, 0.04, 0.03, 0.03, 0.02];

/// Lead of the best alternative at the end of the pass, for a wrong proposal, over that of the proposal for a right one, halved.
const LEAD: f64 = 3.0;
/// Deviation of the lead at a checkpoint.
const LEAD_BLUR: f64 = 1.2;

impl Acceptance {
    /// By how much the best alternative leads at a checkpoint, in logits. Assumed: what will be right leads, what will be wrong trails,
    /// by an amount that grows with the square of the depth and is blurred. So a right proposal leads already in 56 % of
    /// cases at a quarter of the layers, in 73 % at half and in 92 % at three quarters.
    pub(super) fn margin(&self, seed: u64, prefix: u64, depth: f64, right: bool) -> f32 {
        let lead = LEAD * depth * depth;
        let blur = LEAD_BLUR * normal(prefix.rotate_left(29) ^ seed.rotate_left(5) ^ (depth * 64.0) as u64);
        (if right { blur - lead } else { blur + lead }) as f32
    }
}

fn log_odds(classes: &[TextClass], seed: u64, prefix: u64, origin: &Origin) -> f64 {
    let Some(class) = classes.get(origin.class as usize % classes.len().max(1)) else { return 0.0 };
    let middle = class.acceptance.clamp(0.001, 0.999);
    let request = mix(origin.request ^ seed);
    let part = |salt: u64, place: u32| normal(request ^ (salt << 40) ^ u64::from(place));
    let along = f64::from(origin.length % DRIFT_TOKENS) / f64::from(DRIFT_TOKENS);
    let turn = origin.length / DRIFT_TOKENS;
    let drift = (1.0 - along) * part(2, turn) + along * part(2, turn + 1);
    let parts = REQUEST * part(1, 0)
        + DRIFT * drift
        + PASSAGE * part(3, origin.length / PASSAGE_TOKENS)
        + TOKEN * normal(prefix ^ seed.rotate_left(21));
    // The mean of a logistic of a normal is nearer to one half than its middle; stretched, it is the class's again
    // (MacKay 1992, the probit approximation).
    let variance = REQUEST * REQUEST + DRIFT * DRIFT + PASSAGE * PASSAGE + TOKEN * TOKEN;
    let stretch = (1.0 + std::f64::consts::PI * variance / 8.0).sqrt();
    (middle / (1.0 - middle)).ln() * stretch + parts
}

fn logistic(log_odds: f64) -> f64 {
    1.0 / (1.0 + (-log_odds).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (right, confidence) along one request.
    fn walk(acceptance: &Acceptance, class: u32, request: u64, tokens: u32) -> Vec<(bool, f32)> {
        let draw = |length| {
            let prefix = mix(request ^ (u64::from(length) << 20));
            acceptance.draw(5, prefix, &Origin { class, request, length })
        };
        (0..tokens).map(draw).collect()
    }

    fn rate(draws: &[(bool, f32)]) -> f64 {
        draws.iter().filter(|(right, _)| *right).count() as f64 / draws.len().max(1) as f64
    }

    #[test]
    fn classes_have_their_means_and_requests_differ() {
        let mixed = Acceptance::mixed();
        for (class, text) in (0u32..).zip(mixed.classes()) {
            let rates: Vec<f64> = (0..200).map(|r| rate(&walk(&mixed, class, mix(r), 300))).collect();
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            assert!((mean - text.acceptance).abs() < 0.04, "{}: {mean}", text.name);
            let spread = (rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / rates.len() as f64).sqrt();
            assert!(spread > 0.03, "{}: {spread}", text.name);
        }
    }

    #[test]
    fn confidence_tells_right_from_wrong_and_promises_too_much() {
        let mixed = Acceptance::mixed();
        let draws: Vec<_> = (0..300).flat_map(|r| walk(&mixed, 0, mix(r), 200)).collect();
        let high: Vec<_> = draws.iter().copied().filter(|(_, c)| *c > 0.9).collect();
        let low: Vec<_> = draws.iter().copied().filter(|(_, c)| *c < 0.5).collect();
        assert!(high.len() > 5000 && low.len() > 3000);
        assert!(rate(&high) > rate(&low) + 0.25);
        let promised = draws.iter().map(|(_, c)| f64::from(*c)).sum::<f64>() / draws.len() as f64;
        assert!(promised > rate(&draws) + 0.02, "{promised} against {}", rate(&draws));
    }

    #[test]
    fn a_draft_upside_down_is_as_often_right_and_surest_where_it_is_wrong() {
        for upright in [Acceptance::mixed(), Acceptance::from(0.5)] {
            let draws = |acceptance: &Acceptance| -> Vec<_> {
                (0..300).flat_map(|r| walk(acceptance, 0, mix(r), 200)).collect()
            };
            let inverted = upright.clone().inverted();
            let (of, draws) = (draws(&upright), draws(&inverted));
            assert_eq!((inverted.classes(), rate(&draws)), (upright.classes(), rate(&of)));
            let surest = |sure: bool| -> Vec<_> {
                draws.iter().copied().filter(|(_, c)| if sure { *c > 0.7 } else { *c < 0.3 }).collect()
            };
            let (high, low) = (surest(true), surest(false));
            assert!(high.len() > 2000 && low.len() > 2000, "{} {}", high.len(), low.len());
            assert!(rate(&high) + 0.25 < rate(&low), "{} {}", rate(&high), rate(&low));
        }
    }

    #[test]
    fn neighbours_are_of_one_mind() {
        let mixed = Acceptance::mixed();
        let draws: Vec<_> = (0..300).flat_map(|r| walk(&mixed, 0, mix(r), 300)).collect();
        let after_right: Vec<_> = draws.windows(2).filter(|w| w[0].0).map(|w| w[1]).collect();
        let after_wrong: Vec<_> = draws.windows(2).filter(|w| !w[0].0).map(|w| w[1]).collect();
        assert!(rate(&after_right) > rate(&after_wrong) + 0.05);
    }
}
