//! Where the metrics of one replica are registered: with its number and its pair, if there are several.

use metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

/// The labels of all metrics of one service. Without any it is alone, and its metrics have their bare names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    labels: Vec<Label>,
    /// What clients call the model, if there are vLLM's names too.
    vllm_model: Option<String>,
    replica: usize,
}

/// What tells the metrics of a service from others'.
#[derive(Clone, Debug, Default)]
pub struct MetricNames {
    /// The pair, if there are several: the label `pair`.
    pub pair: Option<String>,
    /// What clients call the model: the label `model_name` of metrics with vLLM's names, which are there beside faser's own. None: they are
    /// not.
    pub vllm_model: Option<String>,
}

impl Meter {
    /// The metrics of this pair of several, or of the only one.
    pub(crate) fn of_pair(names: &MetricNames) -> Meter {
        let meter = Meter { vllm_model: names.vllm_model.clone(), ..Meter::default() };
        names.pair.as_deref().map_or(meter.clone(), |pair| meter.with("pair", pair))
    }

    /// Where the metrics are that have vLLM's names, with vLLM's labels, if they are wanted.
    pub(crate) fn vllm(&self) -> Option<Meter> {
        let model = self.vllm_model.clone()?;
        Some(Meter::default().with("model_name", model).with("engine", self.replica.to_string()))
    }

    /// Those of this replica of several.
    #[must_use]
    pub(crate) fn replica(&self, replica: usize) -> Meter {
        Meter { replica, ..self.with("replica", replica.to_string()) }
    }

    /// The same with a further label.
    #[must_use]
    pub(crate) fn with(&self, name: &'static str, value: impl Into<String>) -> Meter {
        let mut labels = self.labels.clone();
        labels.push(Label::new(name, value.into()));
        Meter { labels, ..self.clone() }
    }

    /// A counter that is described elsewhere.
    pub(crate) fn counter(&self, name: &'static str) -> Counter {
        counter!(name, self.labels.clone())
    }

    /// A gauge that is described elsewhere.
    pub(crate) fn gauge(&self, name: &'static str) -> Gauge {
        gauge!(name, self.labels.clone())
    }

    /// A counter.
    pub(crate) fn counts(&self, name: &'static str, unit: Unit, text: &'static str) -> Counter {
        describe_counter!(name, unit, text);
        self.counter(name)
    }

    /// A gauge.
    pub(crate) fn shows(&self, name: &'static str, unit: Unit, text: &'static str) -> Gauge {
        describe_gauge!(name, unit, text);
        self.gauge(name)
    }

    /// A histogram that is described elsewhere.
    pub(crate) fn histogram(&self, name: &'static str) -> Histogram {
        histogram!(name, self.labels.clone())
    }

    /// A histogram of seconds.
    pub(crate) fn times(&self, name: &'static str, text: &'static str) -> Histogram {
        describe_histogram!(name, Unit::Seconds, text);
        self.histogram(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;

    fn names() -> MetricNames {
        MetricNames { pair: Some("b".to_owned()), vllm_model: Some("m".to_owned()) }
    }

    #[test]
    fn several_replicas_and_pairs_are_told_apart_and_one_has_bare_names() {
        let ledger = Ledger::default();
        metrics::with_local_recorder(&ledger, || {
            let alone = Meter::default();
            let replicas = [alone.replica(0), alone.replica(1)];
            let of_pair = Meter::of_pair(&names()).replica(1);
            for (meter, count) in [&alone, &replicas[0], &replicas[1], &of_pair].into_iter().zip(1..) {
                meter.counts("faser_x", Unit::Count, "x").increment(count);
                meter.with("lane", "draft").gauge("faser_y").set(count as f64);
            }
        });
        assert_eq!((ledger.counted("faser_x"), ledger.counted("faser_x{replica=1}")), (1, 3));
        assert_eq!(ledger.counted("faser_x{pair=b}{replica=1}"), 4);
        assert_eq!(ledger.gauged("faser_y{lane=draft}"), 1.0);
        assert_eq!(ledger.gauged("faser_y{replica=0}{lane=draft}"), 2.0);
        let vllm = Meter::of_pair(&names()).replica(1).vllm().expect("it is wanted");
        metrics::with_local_recorder(&ledger, || vllm.gauge("vllm:z").set(7.0));
        assert_eq!(ledger.gauged("vllm:z{model_name=m}{engine=1}"), 7.0);
        assert!(Meter::default().vllm().is_none());
    }
}
