//! A node behind the first: it comes to the leader, and does in each session what its ranks have to.

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use faser_kernels::Isa;
use faser_kernels::collective::{GroupWays, Mesh};
use faser_models::Model;
use faser_topology::Partition;

use super::frames::{
    Begin, First, FromLeader, FromNode, Hello, LARGE, SMALL, SessionWork, receive, send, watch_over,
};
use super::mesh::{Joining, Ways};
use super::{NodeFacts, NodePlace};
use crate::device::LanePasses;
use crate::error::ServiceError;
use crate::lane::words_of;
use crate::profile::follow_passes;
use crate::runner::{CpuBackend, CpuLaneSpec, MASK_PATIENCE, VerifyRunner, VerifyWork};

/// Plans of a lane that wait: the leader has at most so many out.
const QUEUE_CAPACITY: usize = 2;
/// Between two tries to reach the leader: ever longer.
const FIRST_TRY_AFTER: Duration = Duration::from_millis(200);
const LAST_TRY_AFTER: Duration = Duration::from_secs(5);
/// Until a try counts as failed.
const CONNECTING: Duration = Duration::from_secs(5);
/// A connection whose words do not come within this is no rank's.
const FIRST_WORDS: Duration = Duration::from_secs(10);

/// What a node is made for.
pub struct NodeSpec {
    /// Which it is.
    pub place: NodePlace,
    /// Where the leader listens: host and port.
    pub rendezvous: String,
    /// Its shards of the target, rank after rank.
    pub target: Vec<Arc<Model>>,
    /// Its cores, of all ranks here.
    pub cores: Partition,
    /// The instruction set of its kernels.
    pub isa: Isa,
    /// What it must have alike with the leader.
    pub facts: NodeFacts,
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
}

/// Works for the leader, session after session, until `stop` is set. `told` hears how it is.
///
/// # Errors
/// The leader refuses this node, or the system does.
pub fn follow(spec: &NodeSpec, stop: &AtomicBool, told: &mut dyn FnMut(NodeState)) -> Result<(), NodeError> {
    let ways = Arc::new(Ways::default());
    // Where ranks of later nodes connect to: one place for all sessions, on the way to the leader.
    let mut listens: Option<SocketAddr> = None;
    let mut wait = FIRST_TRY_AFTER;
    told(NodeState::Coming(None));
    while !stop.load(Ordering::SeqCst) {
        let (stream, leader) = match reach(&spec.rendezvous) {
            Ok(reached) => reached,
            Err(error) => {
                told(NodeState::Coming(Some(format!("{}: {error}", spec.rendezvous))));
                pause(wait, stop);
                wait = (wait * 2).min(LAST_TRY_AFTER);
                continue;
            }
        };
        let here = stream.local_addr().map_err(NodeError::Listen)?.ip();
        let known = listens.filter(|listens| listens.ip() == here);
        let own = known.map_or_else(|| listen(here, &ways), Ok).map_err(NodeError::Listen)?;
        listens = Some(own);
        match one_session(spec, &stream, (leader, own), &ways, told) {
            Ok(()) => {
                wait = FIRST_TRY_AFTER;
                told(NodeState::Ended(None));
            }
            Err(Failure::Refused(reason)) => return Err(NodeError::Refused(reason)),
            Err(Failure::Other(reason)) => {
                told(NodeState::Ended(Some(reason)));
                pause(wait, stop);
                wait = (wait * 2).min(LAST_TRY_AFTER);
            }
        }
    }
    Ok(())
}

enum Failure {
    Refused(String),
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Other(error.to_string())
    }
}

fn pause(wait: Duration, stop: &AtomicBool) {
    let until = Instant::now() + wait;
    while Instant::now() < until && !stop.load(Ordering::SeqCst) {
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
fn listen(here: IpAddr, ways: &Arc<Ways>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((here, 0))?;
    let (address, ways) = (listener.local_addr()?, ways.clone());
    thread::Builder::new().name("faser-ways".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            // One after the other: each says at once what it is, or goes.
            let first = stream.set_read_timeout(Some(FIRST_WORDS)).and_then(|()| receive(&stream, SMALL));
            if let Ok(First::Way(way)) = first
                && stream.set_read_timeout(None).is_ok()
            {
                ways.put(way, stream);
            }
        }
    })?;
    Ok(address)
}

/// Comes to the leader, and works until the connection ends.
fn one_session(
    spec: &NodeSpec,
    stream: &TcpStream,
    (leader, listens): (SocketAddr, SocketAddr),
    ways: &Ways,
    told: &mut dyn FnMut(NodeState),
) -> Result<(), Failure> {
    let hello = Hello { node: spec.place.rank, of: spec.place.of, facts: spec.facts.clone(), listens };
    send(stream, &First::Hello(hello))?;
    told(NodeState::Waiting);
    let begin = match receive(stream, LARGE)? {
        FromLeader::Refused { reason } => return Err(Failure::Refused(reason)),
        FromLeader::Begin(begin) => begin,
        FromLeader::Plan(_) => return Err(Failure::Other("the leader sent a plan of no session".to_owned())),
    };
    let lanes = match Lanes::begin(spec, stream, leader, ways, &begin) {
        Ok(lanes) => lanes,
        Err(reason) => {
            let _ = send(stream, &FromNode::Failed { reason: reason.clone() });
            return Err(Failure::Other(reason));
        }
    };
    told(NodeState::Working);
    let ended = loop {
        match receive(stream, LARGE) {
            Ok(FromLeader::Plan(plan)) => lanes.give(&Arc::new(plan.work())),
            Ok(_) => break Some("the leader sent what is no plan".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    let failed = lanes.end();
    failed.or(ended).map_or(Ok(()), |reason| Err(Failure::Other(reason)))
}

/// The lanes of this node's ranks in a session, each a thread of its own.
struct Lanes {
    meshes: Vec<Arc<Mesh>>,
    orders: Vec<SyncSender<Arc<VerifyWork>>>,
    threads: Vec<JoinHandle<()>>,
    failed: Arc<Mutex<Option<String>>>,
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
    ) -> Result<Lanes, String> {
        let NodePlace { rank, .. } = spec.place;
        let shard = spec.target[0].shard();
        let before: Vec<SocketAddr> =
            std::iter::once(leader).chain(begin.listen.iter().copied()).take(rank).collect();
        if before.len() < rank {
            return Err("the leader knows of fewer nodes than there are".to_owned());
        }
        let joining = Joining {
            place: spec.place,
            ranks: shard.ranks,
            stages: shard.stages,
            session: begin.session,
            before: &before,
            deadline: begin.rank_deadline,
        };
        let meshes =
            joining.join(ways, &|| true).map_err(|error| format!("its ranks cannot connect: {error}"))?;
        let mut lanes = Lanes {
            meshes,
            orders: Vec::new(),
            threads: Vec::new(),
            failed: Arc::default(),
            closing: Arc::default(),
        };
        let (built, ready) = sync_channel::<()>(spec.target.len());
        let to_leader = Arc::new(stream.try_clone().map_err(|error| error.to_string())?);
        for (place, cores) in spec.cores.split(spec.target.len()).into_iter().enumerate() {
            let (model, mesh) = (spec.target[place].clone(), lanes.meshes[place].clone());
            let rank = RankLane {
                ways: joining.ways(model.shard().rank, &mesh),
                model,
                cores,
                isa: spec.isa,
                work: begin.work.clone(),
            };
            let (order, orders) = sync_channel(QUEUE_CAPACITY);
            let (built, failed, to_leader) = (built.clone(), lanes.failed.clone(), to_leader.clone());
            let closing = lanes.closing.clone();
            let thread = thread::Builder::new().name("faser-verify".to_owned()).spawn(move || {
                let ran = catch_unwind(AssertUnwindSafe(|| rank.run(&orders, &built)));
                let reason = match ran {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error.to_string(),
                    Err(panic) => words_of(&*panic),
                };
                if closing.load(Ordering::SeqCst) {
                    return;
                }
                mesh.abort(&reason);
                let mut first = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if first.is_none() {
                    let _ = send(&to_leader, &FromNode::Failed { reason: reason.clone() });
                    *first = Some(reason);
                }
                let _ = to_leader.shutdown(Shutdown::Both);
            });
            match thread {
                Ok(thread) => lanes.threads.push(thread),
                Err(error) => {
                    lanes.end();
                    return Err(format!("no thread for a lane: {error}"));
                }
            }
            lanes.orders.push(order);
        }
        drop(built);
        for _ in &spec.target {
            // A rank that fails says so to the leader, and is gone.
            if ready.recv().is_err() {
                let failed = lanes.end();
                return Err(failed.unwrap_or_else(|| "a lane was not built".to_owned()));
            }
        }
        let told = send(stream, &FromNode::Ready);
        told.map_err(|error| lanes_ended(&mut lanes, &error))?;
        Ok(lanes)
    }

    /// Gives all ranks the next plan; one that has failed takes none.
    fn give(&self, work: &Arc<VerifyWork>) {
        self.orders.iter().for_each(|orders| drop(orders.send(work.clone())));
    }

    /// Ends all lanes; why the first of them failed, if one has.
    fn end(mut self) -> Option<String> {
        self.close();
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn close(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        self.orders.clear();
        // What waits for ranks that are gone would wait until the deadline.
        self.meshes.iter().for_each(|mesh| mesh.abort("the session has ended"));
        for thread in self.threads.drain(..) {
            // It has told of its panic.
            let _ = thread.join();
        }
    }
}

fn lanes_ended(lanes: &mut Lanes, error: &io::Error) -> String {
    lanes.close();
    format!("the leader is gone: {error}")
}

/// One rank's lane in a session.
struct RankLane {
    model: Arc<Model>,
    ways: GroupWays,
    cores: Partition,
    isa: Isa,
    work: SessionWork,
}

impl RankLane {
    fn run(self, orders: &Receiver<Arc<VerifyWork>>, built: &SyncSender<()>) -> Result<(), ServiceError> {
        match self.work {
            SessionWork::Serve { partitions, blocks, block_size, max_rows, max_logit_rows } => {
                let backend = self.open(partitions, (blocks, block_size), (max_rows, max_logit_rows))?;
                let mut runner = VerifyRunner::new(backend, MASK_PATIENCE);
                let _ = built.send(());
                while let Ok(work) = orders.recv() {
                    drop(runner.run(Arc::unwrap_or_clone(work)));
                }
            }
            SessionWork::Measure(lane) => {
                let lane = LanePasses::from(lane);
                let blocks = (lane.blocks(), lane.block_size);
                let backend = self.open(1, blocks, (lane.most_rows, lane.most_rows))?;
                let _ = built.send(());
                follow_passes(backend, lane);
            }
        }
        Ok(())
    }

    fn open(
        &self,
        partitions: usize,
        (blocks, block_size): (usize, usize),
        (max_rows, max_logit_rows): (usize, usize),
    ) -> Result<CpuBackend, ServiceError> {
        let spec = CpuLaneSpec {
            partitions: vec![self.cores.clone(); partitions],
            isa: self.isa,
            blocks,
            block_size,
            max_rows,
            max_logit_rows,
            features: None,
        };
        let mut backend = CpuBackend::new(self.model.clone(), &spec)?;
        backend.join(&self.ways);
        if !backend.pin_current_thread() {
            tracing::warn!("the lane's thread cannot be pinned to its core; it may be slower");
        }
        Ok(backend)
    }
}
