//! The client's end of a request to replicas: a stream that outlives the replica it comes from.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use faser_engine::{FinishReason, TokenId, Usage};
use tokio::sync::Notify;

use super::{Refused, Replicas, Taken};
use crate::service::Service;
use crate::stream::{TokenStream, Update};
use crate::submission::Submission;

/// How long a request whose replica was given up may look for another that takes it: others may be full, or being rebuilt.
const MOVE_WITHIN: Duration = Duration::from_secs(30);
/// How often it asks.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Streams that somebody reads.
#[derive(Default)]
pub(super) struct Open {
    pub(super) streams: AtomicUsize,
    closed: Notify,
}

/// One of them.
pub(super) struct OpenStream(Arc<Open>);

impl OpenStream {
    pub(super) fn new(open: &Arc<Open>) -> OpenStream {
        open.streams.fetch_add(1, Ordering::SeqCst);
        OpenStream(open.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::SeqCst);
        self.0.closed.notify_waiters();
    }
}

impl Open {
    pub(super) async fn emptied(&self) {
        loop {
            let closed = self.closed.notified();
            tokio::pin!(closed);
            // Registered before the look, so that a close between the two is not missed.
            closed.as_mut().enable();
            if self.streams.load(Ordering::SeqCst) == 0 {
                return;
            }
            closed.await;
        }
    }
}

/// The tokens of one request, from whichever replica has it. Dropping it before `Update::Finished` was seen cancels the request.
pub struct ReplicaStream {
    tokens: TokenStream,
    replica: usize,
    /// What the request needs to go on elsewhere; none where there is no other.
    going_on: Option<Box<GoingOn>>,
    ended: bool,
    cancelled: bool,
    _open: OpenStream,
}

struct GoingOn {
    replicas: Replicas,
    submission: Submission,
    submitted: Instant,
    output: Vec<TokenId>,
    /// What it took on replicas that were given up.
    before: Option<Usage>,
}

impl ReplicaStream {
    pub(super) fn new(
        replicas: &Replicas,
        taken: Taken,
        submission: Submission,
        submitted: Instant,
    ) -> ReplicaStream {
        let Taken { replica, tokens } = taken;
        let several = replicas.count() > 1;
        let going_on = several.then(|| {
            let replicas = replicas.clone();
            Box::new(GoingOn { replicas, submission, submitted, output: Vec::new(), before: None })
        });
        let _open = OpenStream::new(&replicas.0.open);
        ReplicaStream { tokens, replica, going_on, ended: false, cancelled: false, _open }
    }

    /// The next update; `None` after `Update::Finished`, and without it if the service was stopped under the stream. Waits, if the request
    /// has to go on elsewhere.
    pub async fn next(&mut self) -> Option<Update> {
        while !self.ended {
            let update = self.tokens.next().await;
            let Some(rest) = &mut self.going_on else {
                self.ended = !matches!(update, Some(Update::Tokens(_)));
                return update;
            };
            let lost = match &update {
                Some(Update::Tokens(tokens)) => {
                    rest.output.extend(tokens.iter().map(|emitted| emitted.token));
                    return update;
                }
                Some(Update::Finished { reason: FinishReason::DeviceFailed, usage }) => Some(*usage),
                Some(Update::Finished { .. }) => None,
                None => Some(Usage::default()),
            };
            if let Some(usage) = lost
                && !self.cancelled
                && rest.replicas.replica(self.replica).is_some_and(Service::given_up)
                && let Some(Taken { replica, tokens }) = rest.elsewhere(self.replica).await
            {
                (self.replica, self.tokens) = (replica, tokens);
                rest.before = Some(rest.all_of(usage));
                continue;
            }
            self.ended = true;
            return match update {
                Some(Update::Finished { reason, usage }) => {
                    Some(Update::Finished { reason, usage: rest.all_of(usage) })
                }
                other => other,
            };
        }
        None
    }

    /// Cancels the request and keeps the stream: `Update::Finished` follows, behind what had come before, and says what it took.
    pub fn cancel(&mut self) {
        self.cancelled = true;
        self.tokens.cancel();
    }

    /// The replica that has the request now.
    pub fn replica(&self) -> usize {
        self.replica
    }
}

impl fmt::Debug for ReplicaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplicaStream({}, {:?})", self.replica, self.tokens)
    }
}

impl GoingOn {
    /// Hands the request to another replica, as soon as one takes it; none if none will.
    async fn elsewhere(&self, from: usize) -> Option<Taken> {
        let give_up = Instant::now() + MOVE_WITHIN;
        let inner = &*self.replicas.0;
        loop {
            match inner.place(&self.submission, &self.output, self.submitted).await {
                Ok(taken) => {
                    inner.moved.increment(1);
                    tracing::info!(
                        from,
                        to = taken.replica,
                        tokens = self.output.len(),
                        "a request goes on elsewhere"
                    );
                    return Some(taken);
                }
                Err(Refused::Elsewhere(_) | Refused::Stopped) => return None,
                Err(Refused::Full { .. } | Refused::NotReady) => {}
            }
            let hopeless = inner.replicas.iter().all(|replica| replica.service.given_up());
            if hopeless || Instant::now() >= give_up {
                return None;
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// What the request took in all, `last` of it on the latest replica, whose count of output goes on from the ones before.
    fn all_of(&self, last: Usage) -> Usage {
        let Some(before) = self.before else { return last };
        Usage { prompt_tokens: self.submission.prompt.len(), ..before.gone_on(last) }
    }
}
