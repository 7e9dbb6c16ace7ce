//! A node behind the first: it comes to the leader, and does in each session what its ranks have to.

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use faser_kernels::collective::Mesh;
use faser_kernels::cuda::{GroupTerms, NcclId, nccl_group_of};
use faser_models::Shard;

use super::frames::{
    Begin, First, FromLeader, FromNode, Hello, LARGE, SMALL, SessionWork, receive, receive_within, send,
    watch_over,
};
use super::listening::{FIRST_WORDS, listen};
use super::mesh::{Joining, Ways};
use super::{NodeFacts, NodePlace, SessionWays};
use crate::error::ServiceError;
use crate::lane::words_of;
use crate::runner::VerifyWork;

/// Plans of a lane that wait: the leader has at most so many out.
const QUEUE_CAPACITY: usize = 2;
/// Between two tries to reach the leader: ever longer.
const FIRST_TRY_AFTER: Duration = Duration::from_millis(200);
const LAST_TRY_AFTER: Duration = Duration::from_secs(5);
/// Until a try counts as failed.
const CONNECTING: Duration = Duration::from_secs(5);

/// What a node is made for.
pub struct NodeSpec {
    /// Which it is.
    pub(crate) place: NodePlace,
    /// Where the leader listens: host and port.
    pub(crate) rendezvous: String,
    /// Its shards of the target, rank after rank, and where they run.
    pub(crate) target: Box<dyn SessionLanes>,
    /// What it must have alike with the leader.
    pub(crate) facts: NodeFacts,
}

/// Makes and runs a rank's lane, on a thread of its own: it takes plans, and says once it can.
pub(crate) type RunLane =
    Box<dyn FnOnce(&Receiver<Arc<VerifyWork>>, &SyncSender<()>) -> Result<(), ServiceError> + Send>;

/// What a node has of the target, and where.
pub(crate) trait SessionLanes: Send + Sync {
    /// The shard of its first rank.
    fn shard(&self) -> Shard;

    /// The lanes of its ranks in a session, rank after rank, which reach the others so.
    ///
    /// # Errors
    /// A device cannot be had.
    fn lanes(&self, ways: SessionWays, work: &SessionWork) -> Result<Vec<RunLane>, ServiceError>;
}

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It tries to reach the leader; why that failed.
    Coming(Option<String>),
    /// It has reached it, and waits for a session.
    Waiting,
    /// It works.
    Working,
    /// A session has ended, and why, if that is known.
    Ended(Option<String>),
}

/// Why a node cannot be one.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The leader wants another one.
    #[error("the leader refuses this node: {0}")]
    Refused(String),
    /// The system refuses.
    #[error("this node cannot listen: {0}")]
    Listen(#[source] io::Error),
    /// A device is lost for as long as this process lives.
    #[error("{0}")]
    Lost(String),
}

/// What is asked of a node that works, from outside.
#[derive(Debug, Default)]
pub struct NodeControl {
    stop: AtomicBool,
    plans: AtomicU64,
}

impl NodeControl {
    /// It begins no further session.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Plans that it was given.
    pub fn plans(&self) -> u64 {
        self.plans.load(Ordering::Relaxed)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// Works for the leader, session after session, until it is stopped. `told` hears how it is.
///
/// # Errors
/// The leader refuses this node, or the system does.
pub fn follow(
    spec: &NodeSpec,
    control: &NodeControl,
    told: &mut dyn FnMut(NodeState),
) -> Result<(), NodeError> {
    let ranks = spec.facts.ranks;
    let ways = Arc::new(Ways::new(spec.place.ranks(ranks), ranks));
    // Where ranks of later nodes connect to: one place for all sessions, on the way to the leader.
    let mut listens: Option<SocketAddr> = None;
    let mut wait = FIRST_TRY_AFTER;
    told(NodeState::Coming(None));
    while !control.stopped() {
        let (stream, leader) = match reach(&spec.rendezvous) {
            Ok(reached) => reached,
            Err(error) => {
                told(NodeState::Coming(Some(format!("{}: {error}", spec.rendezvous))));
                pause(wait, control);
                wait = (wait * 2).min(LAST_TRY_AFTER);
                continue;
            }
        };
        let here = stream.local_addr().map_err(NodeError::Listen)?.ip();
        let known = listens.filter(|listens| listens.ip() == here);
        let own = known.map_or_else(|| take_ways(here, &ways), Ok).map_err(NodeError::Listen)?;
        listens = Some(own);
        match one_session(spec, &stream, (leader, own), &ways, (control, told)) {
            Ok(()) => {
                wait = FIRST_TRY_AFTER;
                told(NodeState::Ended(None));
            }
            Err(Failure::Refused(reason)) => return Err(NodeError::Refused(reason)),
            Err(Failure::Lost(reason)) => return Err(NodeError::Lost(reason)),
            Err(Failure::Other(reason)) => {
                told(NodeState::Ended(Some(reason)));
                pause(wait, control);
                wait = (wait * 2).min(LAST_TRY_AFTER);
            }
        }
    }
    Ok(())
}

enum Failure {
    Refused(String),
    /// For good.
    Lost(String),
    Other(String),
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Failure {
        if error.lasts() { Failure::Lost(error.to_string()) } else { Failure::Other(error.to_string()) }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Other(error.to_string())
    }
}

fn pause(wait: Duration, control: &NodeControl) {
    let until = Instant::now() + wait;
    while Instant::now() < until && !control.stopped() {
        thread::sleep(Duration::from_millis(50).min(wait));
    }
}

/// A connection to the leader, and where that was: names are looked up each time, for it may have moved.
fn reach(rendezvous: &str) -> io::Result<(TcpStream, SocketAddr)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in rendezvous.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECTING) {
            Ok(stream) => {
                watch_over(&stream)?;
                return Ok((stream, address));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Takes the ways of later nodes' ranks from now on; where.
fn take_ways(here: IpAddr, ways: &Arc<Ways>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((here, 0))?;
    let (address, ways) = (listener.local_addr()?, ways.clone());
    listen(
        listener,
        || true,
        move |stream, first| match first {
            First::Way(way) => ways.put(way, stream),
            First::Hello(_) => Ok(()),
        },
    )?;
    Ok(address)
}

/// Comes to the leader, and works until the connection ends.
fn one_session(
    spec: &NodeSpec,
    stream: &TcpStream,
    (leader, listens): (SocketAddr, SocketAddr),
    ways: &Ways,
    (control, told): (&NodeControl, &mut dyn FnMut(NodeState)),
) -> Result<(), Failure> {
    let hello = Hello { node: spec.place.rank, of: spec.place.of, facts: spec.facts.clone(), listens };
    send(stream, &First::Hello(hello))?;
    match receive_within(stream, SMALL, FIRST_WORDS)? {
        FromLeader::Taken => told(NodeState::Waiting),
        FromLeader::Refused { reason } => return Err(Failure::Refused(reason)),
        _ => return Err(Failure::Other("what listens there is no leader".to_owned())),
    }
    let FromLeader::Begin(begin) = receive(stream, LARGE)? else {
        return Err(Failure::Other("the leader begins no session".to_owned()));
    };
    let lanes = match Lanes::begin(spec, stream, leader, ways, &begin) {
        Ok(lanes) => lanes,
        Err(failure) => {
            let (Failure::Refused(reason) | Failure::Lost(reason) | Failure::Other(reason)) = &failure;
            let _ = send(stream, &FromNode::Failed { reason: reason.clone() });
            return Err(failure);
        }
    };
    told(NodeState::Working);
    let ended = loop {
        match receive(stream, LARGE) {
            Ok(FromLeader::Plan(plan)) => {
                control.plans.fetch_add(1, Ordering::Relaxed);
                lanes.give(&Arc::new(plan.work()));
            }
            Ok(_) => break Some("the leader sent what is no plan".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    let failed = lanes.end();
    failed.or(ended.map(Failure::Other)).map_or(Ok(()), Err)
}

/// Ends what ranks here wait for, and why.
type End = Arc<dyn Fn(&str) + Send + Sync>;

/// The lanes of this node's ranks in a session, each a thread of its own.
struct Lanes {
    end: End,
    orders: Vec<SyncSender<Arc<VerifyWork>>>,
    threads: Vec<JoinHandle<()>>,
    failed: Arc<Mutex<Option<Failure>>>,
    /// What fails from now on fails because of that.
    closing: Arc<AtomicBool>,
}

impl Lanes {
    /// Connects the ranks, builds their lanes, and tells the leader once they can take work.
    fn begin(
        spec: &NodeSpec,
        stream: &TcpStream,
        leader: SocketAddr,
        ways: &Ways,
        begin: &Begin,
    ) -> Result<Lanes, Failure> {
        let (ways, end) = reached(spec, (stream, leader), ways, begin)?;
        let ranks = spec.target.lanes(ways, &begin.work)?;
        let count = ranks.len();
        let mut lanes = Lanes {
            end,
            orders: Vec::new(),
            threads: Vec::new(),
            failed: Arc::default(),
            closing: Arc::default(),
        };
        let (built, ready) = sync_channel::<()>(count);
        let to_leader = Arc::new(stream.try_clone()?);
        for run in ranks {
            let (order, orders) = sync_channel(QUEUE_CAPACITY);
            let (built, failed, to_leader) = (built.clone(), lanes.failed.clone(), to_leader.clone());
            let (closing, end) = (lanes.closing.clone(), lanes.end.clone());
            let thread = thread::Builder::new().name("faser-verify".to_owned()).spawn(move || {
                let ran = catch_unwind(AssertUnwindSafe(|| run(&orders, &built)));
                let failure = match ran {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => Failure::from(error),
                    Err(panic) => Failure::Other(words_of(&*panic)),
                };
                if closing.load(Ordering::SeqCst) {
                    return;
                }
                let (Failure::Refused(reason) | Failure::Lost(reason) | Failure::Other(reason)) = &failure;
                let mut first = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if first.is_none() {
                    let _ = send(&to_leader, &FromNode::Failed { reason: reason.clone() });
                    end(reason);
                    *first = Some(failure);
                }
                let _ = to_leader.shutdown(Shutdown::Both);
            });
            match thread {
                Ok(thread) => lanes.threads.push(thread),
                Err(error) => {
                    lanes.end();
                    return Err(Failure::Other(format!("no thread for a lane: {error}")));
                }
            }
            lanes.orders.push(order);
        }
        drop(built);
        for _ in 0..count {
            // A rank that fails says so to the leader, and is gone.
            if ready.recv().is_err() {
                let failed = lanes.end();
                return Err(failed.unwrap_or_else(|| Failure::Other("a lane was not built".to_owned())));
            }
        }
        match send(stream, &FromNode::Ready) {
            Ok(()) => Ok(lanes),
            Err(error) => {
                lanes.end();
                Err(Failure::Other(format!("the leader is gone: {error}")))
            }
        }
    }

    /// Gives all ranks the next plan; one that has failed takes none.
    fn give(&self, work: &Arc<VerifyWork>) {
        self.orders.iter().for_each(|orders| drop(orders.send(work.clone())));
    }

    /// Ends all lanes; why the first of them failed, if one has.
    fn end(mut self) -> Option<Failure> {
        self.closing.store(true, Ordering::SeqCst);
        self.orders.clear();
        // What waits for ranks that are gone would wait until the deadline.
        (self.end)("the session has ended");
        for thread in self.threads.drain(..) {
            // It has told of its panic.
            let _ = thread.join();
        }
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The ways of the ranks here to all others, and what ends them: sockets between cores, NCCL between GPUs.
fn reached(
    spec: &NodeSpec,
    (stream, leader): (&TcpStream, SocketAddr),
    ways: &Ways,
    begin: &Begin,
) -> Result<(SessionWays, End), Failure> {
    let (place, Shard { ranks, stages, .. }) = (spec.place, spec.target.shard());
    let deadline = begin.rank_deadline;
    if let Some(nccl) = &begin.nccl {
        let id =
            NcclId::of(nccl).ok_or_else(|| Failure::Other("the leader's id is none of NCCL's".to_owned()))?;
        let slots = nccl_group_of(&id, ranks, place.ranks(ranks), GroupTerms::within(deadline));
        let first = slots[0].clone();
        return Ok((SessionWays::Gpus(slots), Arc::new(move |why| first.abort(why))));
    }
    let before = std::iter::once(leader).chain(begin.listen.iter().copied());
    let before: Vec<SocketAddr> = before.take(place.rank).collect();
    if before.len() < place.rank {
        return Err(Failure::Other("the leader knows of fewer nodes than there are".to_owned()));
    }
    let joining = Joining { place, ranks, stages, session: begin.session, before: &before, deadline };
    let cannot = |error| Failure::Other(format!("its ranks cannot connect: {error}"));
    let meshes = joining.join(ways, &|| is_open(stream)).map_err(cannot)?;
    let own = place.ranks(ranks).zip(&meshes).map(|(rank, mesh)| joining.ways(rank, mesh)).collect();
    // A lane that is gone has left.
    let held: Vec<Weak<Mesh>> = meshes.iter().map(Arc::downgrade).collect();
    let end: End =
        Arc::new(move |why| held.iter().filter_map(Weak::upgrade).for_each(|mesh| mesh.abort(why)));
    Ok((SessionWays::Cores(own), end))
}

/// Whether the other side has not closed it.
fn is_open(stream: &TcpStream) -> bool {
    let looked = stream.set_read_timeout(Some(Duration::from_millis(1))).and_then(|()| stream.peek(&mut [0]));
    stream.set_read_timeout(None).is_ok() && !matches!(looked, Ok(0))
}
