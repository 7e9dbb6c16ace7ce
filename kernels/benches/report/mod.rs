//! What was measured, as tables in Markdown.

use crate::machine::Peak;
use faser_kernels::{Dtype, Isa};

/// Name of the limit of bytes.
pub(crate) const READ: &str = "memory read, bytes";

/// A case, and what was measured in it.
pub(crate) struct Case {
    pub(crate) isa: Isa,
    pub(crate) dtype: Dtype,
    pub(crate) workers: usize,
    pub(crate) rows: usize,
    /// Operations of a layer.
    pub(crate) ops: u64,
    /// Bytes of a layer's weights.
    pub(crate) bytes: u64,
    pub(crate) samples: Vec<Sample>,
}

/// Some layers timed together, and what the machine did at most right after.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) layers: u64,
    /// Of one layer.
    pub(crate) seconds: f64,
    /// Operations a second; `None` where no peak is known.
    pub(crate) peak: Option<f64>,
    /// Bytes a second.
    pub(crate) read: f64,
}

/// What the machine can do.
pub(crate) struct Limit {
    pub(crate) name: &'static str,
    /// Units a second, measured several times: for each number of workers.
    pub(crate) rates: Vec<Vec<f64>>,
}

/// The middle one; NaN if there is none.
pub(crate) fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Case {
    /// Forgets the warm-up: samples of a case have as many layers as the last one.
    pub(crate) fn without_warm_up(mut self) -> Case {
        let layers = self.samples.last().map(|last| last.layers);
        self.samples.retain(|sample| Some(sample.layers) == layers);
        self
    }

    /// Cells of the table's row.
    pub(crate) fn cells(&self) -> Vec<String> {
        let seconds = median(self.samples.iter().map(|sample| sample.seconds));
        let read = median(self.samples.iter().map(|sample| sample.read));
        let (op_rate, byte_rate) = (self.ops as f64 / seconds, self.bytes as f64 / seconds);
        let peaks: Option<Vec<f64>> = self.samples.iter().map(|sample| sample.peak).collect();
        let (peak, of_peak) = peaks.map_or(("-".to_owned(), "-".to_owned()), |peaks| {
            let peak = median(peaks);
            (giga(peak), percent(op_rate / peak))
        });
        vec![
            self.isa.to_string(),
            self.dtype.to_string(),
            self.workers.to_string(),
            self.rows.to_string(),
            format!("{:.2}", seconds * 1e3),
            giga(op_rate),
            peak,
            of_peak,
            giga(byte_rate),
            giga(read),
            percent(byte_rate / read),
        ]
    }
}

/// The table of cases.
pub(crate) fn cases(cases: &[Case]) -> String {
    let head = "isa|dtype|workers|rows|ms a layer|GFLOP/s|peak|% of peak|GB/s|read|% of read";
    table(head, 2, cases.iter().map(Case::cells))
}

/// The table of limits: of what each is the peak, and its rate for each number of workers.
pub(crate) fn limits(workers: &[usize], limits: &[Limit]) -> String {
    let head = workers.iter().fold("measured limit, G/s|peak of".to_owned(), |head, workers| {
        format!("{head}|{workers} {}", if *workers == 1 { "worker" } else { "workers" })
    });
    let rows = limits.iter().map(|limit| {
        let mut cells = vec![limit.name.to_owned(), peak_of(limit.name)];
        cells.extend(limit.rates.iter().map(|rates| giga(median(rates.iter().copied()))));
        cells
    });
    table(&head, 2, rows)
}

/// Kernels of this machine that are compared with the loop of this name.
fn peak_of(name: &str) -> String {
    let mut kernels = Vec::new();
    for isa in Isa::available() {
        let of = |dtype: &Dtype| Peak::of(&isa.to_string(), *dtype).is_some_and(|peak| peak.name() == name);
        let dtypes: Vec<String> = [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4]
            .iter()
            .filter(|d| of(d))
            .map(Dtype::to_string)
            .collect();
        if !dtypes.is_empty() {
            kernels.push(format!("{isa} {}", dtypes.join(" and ")));
        }
    }
    kernels.join(", ")
}

fn giga(rate: f64) -> String {
    format!("{:.1}", rate / 1e9)
}

fn percent(part: f64) -> String {
    format!("{:.0}", part * 100.0)
}

/// A table with cells of one width in each column; the first `text` columns stand left, the others, of numbers, right.
fn table(head: &str, text: usize, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut lines: Vec<Vec<String>> = vec![head.split('|').map(str::to_owned).collect()];
    lines.extend(rows);
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0))
        .collect();
    let rule = widths.iter().enumerate().map(|(column, width)| {
        if column < text { "-".repeat(*width) } else { format!("{}:", "-".repeat(width - 1)) }
    });
    lines.insert(1, rule.collect());
    let line = |cells: &Vec<String>| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column < text { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    lines.iter().map(line).collect()
}
