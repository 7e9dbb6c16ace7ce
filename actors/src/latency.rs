//! Latencies as the client feels them, measured where tokens leave the dispatcher.

use std::time::Instant;

use metrics::Histogram;

use crate::meter::Meter;

/// Upper bounds of histogram buckets for latencies a client feels, in seconds.
pub const LATENCY_BUCKETS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// When things happened to one request.
#[derive(Debug)]
pub(crate) struct RequestClock {
    submitted: Instant,
    /// First and latest emission, and tokens so far.
    emissions: Option<(Instant, Instant, usize)>,
}

impl RequestClock {
    pub(crate) fn new(submitted: Instant) -> RequestClock {
        RequestClock { submitted, emissions: None }
    }

    /// Of a request that has streamed some of its tokens elsewhere, and goes on here from `now` on.
    pub(crate) fn going_on(submitted: Instant, now: Instant) -> RequestClock {
        RequestClock { submitted, emissions: Some((now, now, 1)) }
    }
}

/// The histograms; taken once, so that recording is cheap.
pub(crate) struct Latencies {
    first_token: Histogram,
    emission_gap: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    request: Histogram,
}

impl Latencies {
    pub(crate) fn new(meter: &Meter) -> Latencies {
        let described = |name, text| meter.times(name, text);
        Latencies {
            first_token: described(
                "faser_time_to_first_token_seconds",
                "TTFT: from the submission of a request to its first token",
            ),
            emission_gap: described(
                "faser_emission_gap_seconds",
                "time between two emissions of a request; one emission may bring several tokens",
            ),
            inter_token: described(
                "faser_inter_token_latency_seconds",
                "ITL: the emission gap shared out over the emission's tokens, counted once per token",
            ),
            per_output_token: described(
                "faser_time_per_output_token_seconds",
                "TPOT: time from the first to the last token of a finished request, per token after the first",
            ),
            request: described(
                "faser_request_latency_seconds",
                "from the submission of a request to its end, for requests that were not cancelled",
            ),
        }
    }

    /// `tokens` (at least one) of a request left at `now`.
    pub(crate) fn emitted(&self, clock: &mut RequestClock, now: Instant, tokens: usize) {
        let Some((_, latest, so_far)) = &mut clock.emissions else {
            self.first_token.record(now.duration_since(clock.submitted));
            clock.emissions = Some((now, now, tokens));
            return;
        };
        let gap = now.duration_since(*latest).as_secs_f64();
        self.emission_gap.record(gap);
        self.inter_token.record_many(gap / tokens as f64, tokens);
        *latest = now;
        *so_far += tokens;
    }

    /// A request came to its own end at `now`.
    pub(crate) fn finished(&self, clock: &RequestClock, now: Instant) {
        self.request.record(now.duration_since(clock.submitted));
        if let Some((first, latest, tokens)) = clock.emissions
            && tokens > 1
        {
            self.per_output_token.record(latest.duration_since(first).as_secs_f64() / (tokens - 1) as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use std::time::Duration;

    #[test]
    fn latencies_are_what_a_client_would_measure() {
        let ledger = Ledger::default();
        let latencies = metrics::with_local_recorder(&ledger, || Latencies::new(&Meter::default()));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut clock = RequestClock::new(start);
        latencies.emitted(&mut clock, at(2), 1);
        latencies.emitted(&mut clock, at(8), 3);
        latencies.emitted(&mut clock, at(10), 1);
        latencies.finished(&clock, at(11));
        assert_eq!(ledger.sampled("faser_time_to_first_token_seconds"), [2.0]);
        assert_eq!(ledger.sampled("faser_emission_gap_seconds"), [6.0, 2.0]);
        assert_eq!(ledger.sampled("faser_inter_token_latency_seconds"), [2.0, 2.0, 2.0, 2.0]);
        assert_eq!(ledger.sampled("faser_time_per_output_token_seconds"), [2.0]);
        assert_eq!(ledger.sampled("faser_request_latency_seconds"), [11.0]);
        assert_eq!(ledger.undescribed(), [""; 0]);
    }

    #[test]
    fn the_first_token_is_counted_once_of_a_request_that_moved() {
        let ledger = Ledger::default();
        let latencies = metrics::with_local_recorder(&ledger, || Latencies::new(&Meter::default()));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut clock = RequestClock::going_on(start, at(5));
        latencies.emitted(&mut clock, at(6), 2);
        latencies.finished(&clock, at(7));
        assert!(ledger.sampled("faser_time_to_first_token_seconds").is_empty());
        assert_eq!(ledger.sampled("faser_inter_token_latency_seconds"), [0.5, 0.5]);
        assert_eq!(ledger.sampled("faser_time_per_output_token_seconds"), [0.5]);
        assert_eq!(ledger.sampled("faser_request_latency_seconds"), [7.0]);
    }

    #[test]
    fn a_request_without_tokens_has_no_token_latencies() {
        let ledger = Ledger::default();
        let latencies = metrics::with_local_recorder(&ledger, || Latencies::new(&Meter::default()));
        let start = Instant::now();
        latencies.finished(&RequestClock::new(start), start + Duration::from_secs(1));
        assert_eq!(ledger.sampled("faser_request_latency_seconds"), [1.0]);
        assert!(ledger.sampled("faser_time_to_first_token_seconds").is_empty());
        assert!(ledger.sampled("faser_time_per_output_token_seconds").is_empty());
    }
}
