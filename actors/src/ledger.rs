//! A metrics recorder for tests: it keeps everything and can be asked.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Values by full name, as in `name{label=value}`, and the names that were described.
#[derive(Default)]
pub(crate) struct Ledger {
    values: Mutex<HashMap<String, Arc<AtomicU64>>>,
    samples: Mutex<HashMap<String, Arc<Samples>>>,
    described: Mutex<HashSet<String>>,
}

#[derive(Default)]
struct Samples(Mutex<Vec<f64>>);

impl HistogramFn for Samples {
    fn record(&self, value: f64) {
        self.0.lock().expect("the samples").push(value);
    }
}

impl Ledger {
    pub(crate) fn counted(&self, name: &str) -> u64 {
        self.values.lock().expect("the values")[name].load(Ordering::Relaxed)
    }

    pub(crate) fn gauged(&self, name: &str) -> f64 {
        f64::from_bits(self.counted(name))
    }

    pub(crate) fn sampled(&self, name: &str) -> Vec<f64> {
        self.samples.lock().expect("the histograms")[name].0.lock().expect("the samples").clone()
    }

    /// Names of metrics nobody described.
    pub(crate) fn undescribed(&self) -> Vec<String> {
        let described = self.described.lock().expect("the descriptions");
        let values = self.values.lock().expect("the values");
        let samples = self.samples.lock().expect("the histograms");
        let bare = |name: &String| name.split('{').next().unwrap_or_default().to_owned();
        values.keys().chain(samples.keys()).map(bare).filter(|name| !described.contains(name)).collect()
    }

    fn slot(&self, key: &Key) -> Arc<AtomicU64> {
        self.values.lock().expect("the values").entry(full_name(key)).or_default().clone()
    }

    fn describe(&self, name: &KeyName) {
        self.described.lock().expect("the descriptions").insert(name.as_str().to_owned());
    }
}

fn full_name(key: &Key) -> String {
    let labels: String = key.labels().map(|label| format!("{{{}={}}}", label.key(), label.value())).collect();
    format!("{}{labels}", key.name())
}

impl Recorder for Ledger {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.slot(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.slot(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(
            self.samples.lock().expect("the histograms").entry(full_name(key)).or_default().clone(),
        )
    }
}
