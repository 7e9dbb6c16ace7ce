//! What nodes say to each other: MessagePack, each message behind its length.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use faser_engine::{TokenId, VerifyPlan};
use faser_kernels::Sampling;
use faser_models::cuda::CudaSizes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};

use super::NodeFacts;
use crate::runner::VerifyWork;
use crate::submission::{Constraint, LaneRequest, LogprobCollector};

/// Of what is said before a session: a stranger cannot make anybody hold more.
pub(super) const SMALL: usize = 64 << 10;
/// A plan's: its tokens, tables and histories.
pub(super) const LARGE: usize = 256 << 20;

/// What a connection begins with.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum First {
    /// A node has come.
    Hello(Hello),
    /// A rank's way to another, in a session.
    Way(Way),
}

/// A node, and what it has.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) node: usize,
    pub(super) of: usize,
    pub(super) facts: NodeFacts,
    /// Where its ranks are found.
    pub(super) listens: SocketAddr,
}

/// Two ranks of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Way {
    pub(super) session: u64,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// What the leader says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromLeader {
    /// The node is one of its.
    Taken,
    /// It has no place for this node.
    Refused { reason: String },
    /// A session begins.
    Begin(Begin),
    /// The next plan.
    Plan(Box<PlanFrame>),
}

/// What a node says in a session.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromNode {
    /// Its lanes can take work.
    Ready,
    /// They cannot, or cannot any more.
    Failed { reason: String },
}

/// A session: what lanes are made for, and where the ranks of the others are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Begin {
    pub(super) session: u64,
    /// Of each node behind the leader.
    pub(super) listen: Vec<SocketAddr>,
    pub(super) rank_deadline: Duration,
    /// By what ranks on GPUs find each other; none where they are on CPUs.
    pub(super) nccl: Option<Vec<u8>>,
    pub(super) work: SessionWork,
}

/// What a session is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum SessionWork {
    /// Verify plans, by lanes of these sizes.
    Serve(VerifyLaneSpec),
    /// Passes whose time the first rank takes.
    Measure(MeasuredLane),
}

/// What a verify lane is made for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct VerifyLaneSpec {
    pub(crate) partitions: usize,
    pub(crate) blocks: usize,
    pub(crate) block_size: usize,
    pub(crate) max_rows: usize,
    pub(crate) max_logit_rows: usize,
    pub(crate) max_running: usize,
    pub(crate) max_context: usize,
    pub(crate) layers: usize,
    pub(crate) deterministic: bool,
}

impl VerifyLaneSpec {
    /// The same on a GPU.
    pub(crate) fn cuda(&self) -> CudaSizes {
        CudaSizes {
            blocks: self.blocks,
            max_rows: self.max_rows,
            max_logit_rows: self.max_logit_rows,
            max_chunks: self.max_running,
            max_sequences: self.max_running,
            max_context: self.max_context,
            max_prune_checkpoints: self.layers,
            deterministic: self.deterministic,
        }
    }
}

/// A lane whose passes are timed, of the target.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct MeasuredLane {
    pub(crate) block_size: usize,
    pub(crate) most_rows: usize,
    pub(crate) context: usize,
    pub(crate) table: usize,
    pub(crate) vocab: usize,
    pub(crate) deterministic: bool,
}

/// A plan with its requests.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PlanFrame {
    plan: VerifyPlan,
    requests: Vec<RequestFrame>,
}

/// What a rank has to know of a request to draw the same tokens. Log-probabilities are the first rank's, and so are grammars.
#[derive(Debug, Serialize, Deserialize)]
struct RequestFrame {
    sampling: Arc<Sampling>,
    /// How many of the likeliest are wanted, and of which prompt.
    logprobs: Option<(usize, Option<Arc<[TokenId]>>)>,
    constrained: bool,
}

impl PlanFrame {
    pub(super) fn of(work: &VerifyWork) -> PlanFrame {
        let request = |request: &Arc<LaneRequest>| RequestFrame {
            sampling: request.sampling.clone(),
            logprobs: request.logprobs.as_ref().map(|collector| collector.wanted()),
            constrained: request.constraint.is_some(),
        };
        PlanFrame { plan: work.plan.clone(), requests: work.requests.iter().map(request).collect() }
    }

    pub(super) fn work(self) -> VerifyWork {
        let request = |RequestFrame { sampling, logprobs, constrained }| {
            let collector = |(top, prompt)| match prompt {
                Some(prompt) => LogprobCollector::with_prompt(top, prompt),
                None => LogprobCollector::of_output(top),
            };
            Arc::new(LaneRequest {
                sampling,
                logprobs: logprobs.map(|wanted| Arc::new(collector(wanted))),
                constraint: constrained.then(|| Arc::new(Constraint::elsewhere())),
            })
        };
        VerifyWork { plan: self.plan, requests: self.requests.into_iter().map(request).collect() }
    }
}

/// Sends a message whole.
pub(super) fn send(stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut frame = vec![0; 4];
    rmp_serde::encode::write(&mut frame, message).map_err(io::Error::other)?;
    let length = u32::try_from(frame.len() - 4).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    (&*stream).write_all(&frame)
}

/// Waits for a message of at most so many bytes, which has to be whole within this.
pub(super) fn receive_within<T: DeserializeOwned>(
    stream: &TcpStream,
    most: usize,
    within: Duration,
) -> io::Result<T> {
    let received = read_message(Until { stream, until: Instant::now() + within }, most);
    stream.set_read_timeout(None)?;
    received
}

/// A stream that is read until then, however little comes at a time.
struct Until<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut stream = self.stream;
        stream.read(to)
    }
}

/// Waits for a message of at most so many bytes.
pub(super) fn receive<T: DeserializeOwned>(stream: &TcpStream, most: usize) -> io::Result<T> {
    read_message(stream, most)
}

fn read_message<T: DeserializeOwned>(mut stream: impl Read, most: usize) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        let problem =
            format!("a message of {length} bytes, where {most} is most: this is no node of faser's");
        return Err(io::Error::new(ErrorKind::InvalidData, problem));
    }
    // As it comes: what is said to come may never.
    let mut bytes = Vec::new();
    stream.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    rmp_serde::from_slice(&bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error.to_string()))
}

/// A machine that is gone says nothing: the system asks it now and then.
pub(super) fn watch_over(stream: &TcpStream) -> io::Result<()> {
    let (time, interval) = (Duration::from_secs(10), Duration::from_secs(5));
    let keepalive = TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(3);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))?;
    stream.set_nodelay(true)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_message_has_to_be_whole_in_time_however_it_drips() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut drips = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let dripping = thread::spawn(move || {
            let _ = drips.write_all(&60_000_u32.to_le_bytes());
            while drips.write_all(&[0]).is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let begun = Instant::now();
        let received: io::Result<First> = receive_within(&stream, SMALL, Duration::from_millis(300));
        assert!(received.is_err() && begun.elapsed() < Duration::from_secs(10), "{received:?}");
        drop(stream);
        dripping.join().unwrap();
        // And no length is believed that nobody has to send.
        let mut sends = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        sends.write_all(&u32::MAX.to_le_bytes()).unwrap();
        let received: io::Result<First> = receive(&stream, SMALL);
        assert!(received.unwrap_err().to_string().contains("this is no node of faser's"));
    }
}
