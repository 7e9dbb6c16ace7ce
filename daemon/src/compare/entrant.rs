//! What takes part in a comparison: a policy of the config, or `faser` with some of its mechanisms.

use std::fmt;
use std::str::FromStr;

use faser_actors::{ServiceSpec, WatchdogConfig};
use faser_bench::sim::Ablation;
use faser_engine::{EngineConfig, Policy, Tuning};

use crate::load::Loaded;

/// One that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrant {
    /// How lengths are chosen.
    pub policy: Policy,
    /// Which mechanisms and partitions it may use; without one, all that the config allows.
    pub ablation: Option<Ablation>,
}

impl FromStr for Entrant {
    type Err = String;

    fn from_str(text: &str) -> Result<Entrant, String> {
        if let Ok(ablation) = text.parse() {
            return Ok(Entrant { policy: Policy::Faser, ablation: Some(ablation) });
        }
        if ["best-fixed", "batch-table"].contains(&text) {
            return Err(format!(
                "`{text}` is found by the simulator alone (faser sim): name lengths, such as fixed:2"
            ));
        }
        let policy = text.parse().map_err(|unknown: String| {
            let ablations: Vec<&str> = Ablation::ALL.iter().map(|ablation| ablation.name).collect();
            format!("{unknown}; or an ablation of `faser`: {}", ablations.join(", "))
        })?;
        Ok(Entrant { policy, ablation: None })
    }
}

impl fmt::Display for Entrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ablation {
            Some(ablation) => f.write_str(ablation.name),
            None => self.policy.fmt(f),
        }
    }
}

impl Entrant {
    /// A service of its own over the pair that all share. Up to `waiting` requests may wait.
    pub(super) fn service(&self, pair: &Loaded, waiting: usize) -> ServiceSpec {
        let engine = EngineConfig {
            partitions: self.partitions(&pair.engine.partitions),
            tuning: Tuning {
                policy: self.policy.clone(),
                mechanisms: self
                    .ablation
                    .map_or(pair.engine.tuning.mechanisms, |ablation| ablation.mechanisms),
                // One of the config's choice may not be among those of an ablation.
                partition: pair.engine.tuning.partition.filter(|_| self.ablation.is_none()),
                max_waiting: pair.engine.tuning.max_waiting.max(waiting),
                ..pair.engine.tuning.clone()
            },
            ..pair.engine.clone()
        };
        let places: Vec<usize> = (0..pair.device.partitions().len()).collect();
        let device = pair.device.with_partitions(&self.partitions(&places));
        ServiceSpec { device, engine, watchdog: WatchdogConfig::default() }
    }

    /// The whole device, and those splits of it that may be used.
    fn partitions<T: Clone>(&self, all: &[T]) -> Vec<T> {
        match (self.ablation, all) {
            (Some(ablation), [whole, splits @ ..]) => {
                [whole.clone()].into_iter().chain(ablation.splits(splits)).collect()
            }
            _ => all.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entrant(text: &str) -> Entrant {
        text.parse().unwrap()
    }

    #[test]
    fn policies_and_ablations_are_read_and_written_alike() {
        for text in [
            "off",
            "fixed:4",
            "batch-table:4=6,16=2",
            "budget",
            "faser",
            "length",
            "+trim",
            "+prune",
            "+lookup",
        ] {
            assert_eq!(entrant(text).to_string(), text);
        }
        assert_eq!(entrant("+trim").policy, Policy::Faser);
    }

    #[test]
    fn what_cannot_take_part_is_refused_with_what_can() {
        for (text, advice) in [
            ("fixed:99", "`fixed:K` with K from 1 to 16"),
            ("+cut", "length, +trim, +overlap, +partition, +prune, +lookup, length+prune"),
            ("best-fixed", "faser sim"),
            ("batch-table", "faser sim"),
        ] {
            let refusal = text.parse::<Entrant>().unwrap_err();
            assert!(refusal.contains(advice), "{refusal}");
        }
    }

    #[test]
    fn an_ablation_without_partitions_has_the_middle_split() {
        let all = ["whole", "1", "4", "8"];
        assert_eq!(entrant("+overlap").partitions(&all), ["whole", "4"]);
        assert_eq!(entrant("+partition").partitions(&all), all);
        assert_eq!(entrant("faser").partitions(&all), all);
        assert_eq!(entrant("length").partitions(&["whole"]), ["whole"]);
        assert!(entrant("length").partitions::<u8>(&[]).is_empty());
    }
}
