//! Drives one service: a closed loop of streams, or requests at given times.

use std::cell::Cell;
use std::time::{Duration, Instant};

use actix_web::rt::time::sleep;
use faser_actors::{Service, Update};
use faser_engine::{FinishReason, TokenId};
use futures_util::future::try_join_all;

use super::requests::Requests;
use crate::error::DaemonError;
use crate::sequence::SequenceError;

/// A request that was answered.
pub(super) struct Answer {
    /// From its arrival to its last token.
    pub(super) latency: Duration,
    /// From its arrival to its first token.
    pub(super) ttft: Duration,
    pub(super) tokens: Vec<TokenId>,
}

/// Keeps `streams` of the `count` requests from `first` on in flight. Answers come in the order of the requests.
pub(super) async fn closed(
    service: &Service,
    requests: &Requests,
    first: usize,
    count: usize,
    streams: usize,
) -> Result<Vec<Answer>, DaemonError> {
    let next = Cell::new(0);
    let stream = async || {
        let mut answers = Vec::new();
        while next.get() < count {
            let request = next.replace(next.get() + 1);
            answers.push((request, ask(service, requests, first + request, Instant::now()).await?));
        }
        Ok::<_, DaemonError>(answers)
    };
    let mut answers: Vec<_> =
        try_join_all((0..streams).map(|_| stream())).await?.into_iter().flatten().collect();
    answers.sort_by_key(|(request, _)| *request);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

/// Sends the first requests at these times, whether or not those before are answered.
pub(super) async fn open(
    service: &Service,
    requests: &Requests,
    arrivals: &[Duration],
) -> Result<Vec<Answer>, DaemonError> {
    let start = Instant::now();
    let request = async |(request, at): (usize, &Duration)| {
        sleep((start + *at).saturating_duration_since(Instant::now())).await;
        ask(service, requests, request, start + *at).await
    };
    try_join_all(arrivals.iter().enumerate().map(request)).await
}

async fn ask(
    service: &Service,
    requests: &Requests,
    request: usize,
    arrived: Instant,
) -> Result<Answer, DaemonError> {
    let mut updates = service.submit(requests.submission(request)).await?;
    let mut tokens: Vec<TokenId> = Vec::new();
    let mut ttft = None;
    loop {
        match updates.next().await {
            Some(Update::Tokens(more)) => {
                ttft.get_or_insert_with(|| arrived.elapsed());
                tokens.extend(more.iter().map(|emitted| emitted.token));
            }
            Some(Update::Finished { reason: FinishReason::Length, .. }) => {
                let latency = arrived.elapsed();
                return Ok(Answer { latency, ttft: ttft.unwrap_or(latency), tokens });
            }
            Some(Update::Finished { .. }) => return Err(SequenceError::DeviceFailed.into()),
            None => return Err(SequenceError::Ended.into()),
        }
    }
}
