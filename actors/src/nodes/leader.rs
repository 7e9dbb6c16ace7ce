//! The first node: where the others come to, and how they are given the leader's plans.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use faser_kernels::collective::{GroupWays, Mesh};
use faser_kernels::cuda::{GroupTerms, NcclId, NcclRankSlot, nccl_group_of};

use super::frames::{
    Begin, First, FromLeader, FromNode, Hello, PlanFrame, SMALL, SessionWork, receive, send, watch_over,
};
use super::listening::listen;
use super::mesh::{Joining, Ways};
use super::{NodeFacts, NodePlace};
use crate::error::ServiceError;
use crate::failures::OnLoss;
use crate::lane::{Build, Follow, Run};
use crate::runner::VerifyWork;

/// Lanes of another node are built within this: its KV memory is allocated.
const BUILDING: Duration = Duration::from_secs(600);
/// How often it is said who is waited for.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What a leader's nodes are made for.
#[derive(Clone, Debug)]
pub struct NodesSpec {
    /// Nodes, this one among them.
    pub of: usize,
    /// Where they come to.
    pub rendezvous: SocketAddr,
    /// What all must have alike.
    pub facts: NodeFacts,
    /// A rank that another has waited for longer is lost, and a session with it.
    pub rank_deadline: Duration,
    /// How long all nodes are waited for, each time.
    pub join_timeout: Duration,
}

/// The other nodes, as they come. Clones are the same.
#[derive(Clone)]
pub struct Nodes(Arc<Inner>);

struct Inner {
    spec: NodesSpec,
    address: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
    ways: Ways,
    stopped: AtomicBool,
}

#[derive(Default)]
struct State {
    session: u64,
    /// Nodes that wait for a session.
    waiting: HashMap<usize, Waiting>,
    /// Those of the latest one.
    working: HashMap<usize, Weak<LinkState>>,
}

struct Waiting {
    stream: TcpStream,
    listens: SocketAddr,
}

impl Nodes {
    /// Listens for the others.
    ///
    /// # Errors
    /// Nobody can listen there, or the system has no thread.
    pub fn listen(spec: NodesSpec) -> io::Result<Nodes> {
        let listener = TcpListener::bind(spec.rendezvous)?;
        let inner = Arc::new(Inner {
            address: listener.local_addr()?,
            state: Mutex::default(),
            changed: Condvar::new(),
            ways: Ways::new(0..spec.facts.ranks / spec.of, spec.facts.ranks),
            stopped: AtomicBool::new(false),
            spec,
        });
        let (held, takes) = (Arc::downgrade(&inner), Arc::downgrade(&inner));
        listen(
            listener,
            move || held.strong_count() > 0,
            move |stream, first| takes.upgrade().map_or(Ok(()), |inner| Nodes(inner).take(stream, first)),
        )?;
        Ok(Nodes(inner))
    }

    /// Where the others come to.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Cuts the connection to a node in its session, if it has one.
    #[cfg(test)]
    pub(crate) fn cut(&self, node: usize) {
        let link = self.0.lock().working.get(&node).and_then(Weak::upgrade);
        link.into_iter().for_each(|link| drop(link.stream.shutdown(Shutdown::Both)));
    }

    /// Ends what waits for other nodes, for good.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::SeqCst);
        self.0.changed.notify_all();
    }

    /// All ranks of the target.
    pub(crate) fn ranks(&self) -> usize {
        self.0.spec.facts.ranks
    }

    /// Ranks of the target that are here.
    pub(crate) fn own_ranks(&self) -> Range<usize> {
        self.place().ranks(self.0.spec.facts.ranks)
    }

    fn place(&self) -> NodePlace {
        NodePlace { rank: 0, of: self.0.spec.of }
    }

    /// Waits for all nodes, and has them begin. What they had begun before has ended by then, or does now.
    pub(crate) fn begin(&self, work: &SessionWork) -> Result<Session, ServiceError> {
        let until = Instant::now() + self.0.spec.join_timeout;
        loop {
            let (session, nodes) = self.all_nodes(until)?;
            match self.begin_with(session, nodes, work) {
                Ok(session) => return Ok(session),
                // It went between coming and beginning: it comes again.
                Err(error) if Instant::now() < until && !self.stopped() => {
                    tracing::warn!(%error, "the nodes did not come together; they try again");
                }
                Err(error) => return Err(ServiceError::Node(error.to_string())),
            }
        }
    }

    fn stopped(&self) -> bool {
        self.0.stopped.load(Ordering::SeqCst)
    }

    /// All other nodes, by their numbers, for the next session.
    fn all_nodes(&self, until: Instant) -> Result<(u64, Vec<Waiting>), ServiceError> {
        let (of, address) = (self.0.spec.of, self.0.address);
        let mut told = Instant::now();
        let mut state = self.0.lock();
        loop {
            let missing: Vec<String> = (1..of)
                .filter(|node| !state.waiting.contains_key(node))
                .map(|node| node.to_string())
                .collect();
            if missing.is_empty() {
                state.session += 1;
                let nodes = (1..of).filter_map(|node| state.waiting.remove(&node)).collect();
                return Ok((state.session, nodes));
            }
            let waits = format!("node {} of {of} (from 0) has not come to {address}", missing.join(", "));
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stopped() {
                return Err(ServiceError::Node(waits));
            }
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                tracing::info!("waiting: {waits}");
            }
            let wait = left.min(Duration::from_millis(500));
            state = self.0.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn begin_with(&self, session: u64, nodes: Vec<Waiting>, work: &SessionWork) -> io::Result<Session> {
        let spec = &self.0.spec;
        let listen = nodes.iter().map(|node| node.listens).collect();
        let id = spec.facts.on_gpus.then(NcclId::new).transpose().map_err(io::Error::other)?;
        let nccl = id.as_ref().map(NcclId::bytes);
        let begin = Begin { session, listen, rank_deadline: spec.rank_deadline, nccl, work: work.clone() };
        let links = nodes.into_iter().zip(1..).map(|(node, number)| {
            let state = Arc::new(LinkState {
                node: number,
                of: spec.of,
                stream: node.stream,
                ends: OnceLock::new(),
                lost: Mutex::default(),
                closing: AtomicBool::new(false),
            });
            state.stream.set_write_timeout(Some(spec.rank_deadline))?;
            send(&state.stream, &FromLeader::Begin(begin.clone()))?;
            let (tell, ready) = channel();
            let hears = state.clone();
            thread::Builder::new().name("faser-node".to_owned()).spawn(move || hears.listen(&tell))?;
            self.0.lock().working.insert(number, Arc::downgrade(&state));
            Ok(Link { state, ready: Mutex::new(ready) })
        });
        let links = links.collect::<io::Result<Vec<Link>>>()?;
        let joining = Joining {
            place: self.place(),
            ranks: spec.facts.ranks,
            stages: spec.facts.stages,
            session,
            before: &[],
            deadline: spec.rank_deadline,
        };
        if let Some(id) = id {
            let (ranks, own) = (spec.facts.ranks, self.own_ranks());
            let slots = nccl_group_of(&id, ranks, own, GroupTerms::within(spec.rank_deadline));
            let first = slots[0].clone();
            let ends: End = Arc::new(move |why| first.abort(why));
            links.iter().try_for_each(|link| link.state.ends_with(ends.clone()))?;
            return Ok(Session { ways: SessionWays::Gpus(slots), links });
        }
        let all_well = || !self.stopped() && links.iter().all(|link| link.state.lost_why().is_none());
        let meshes = joining.join(&self.0.ways, &all_well).map_err(|error| {
            let why = links.iter().find_map(|link| link.state.lost_why());
            why.map_or(error, io::Error::other)
        })?;
        let held: Vec<Weak<Mesh>> = meshes.iter().map(Arc::downgrade).collect();
        let ends: End =
            Arc::new(move |why| held.iter().filter_map(Weak::upgrade).for_each(|mesh| mesh.abort(why)));
        links.iter().try_for_each(|link| link.state.ends_with(ends.clone()))?;
        let ways = self.own_ranks().zip(&meshes).map(|(rank, mesh)| joining.ways(rank, mesh)).collect();
        Ok(Session { ways: SessionWays::Cores(ways), links })
    }

    fn take(&self, stream: TcpStream, first: First) -> io::Result<()> {
        match first {
            First::Way(way) => self.0.ways.put(way, stream),
            First::Hello(hello) => self.come(stream, hello),
        }
    }

    fn come(&self, stream: TcpStream, hello: Hello) -> io::Result<()> {
        let spec = &self.0.spec;
        let Hello { node, of, facts, listens } = hello;
        let refusal = if of != spec.of {
            Some(format!("it is one of {of} nodes, the leader one of {}: make `node.of` the same", spec.of))
        } else if node == 0 || node >= of {
            Some(format!(
                "there is one leader, and no node {node} of {of} beside it: give it a `node.rank` of its own"
            ))
        } else {
            spec.facts.differs(&facts)
        };
        if let Some(reason) = refusal {
            tracing::warn!(node, reason, "a node was refused");
            return send(&stream, &FromLeader::Refused { reason });
        }
        watch_over(&stream)?;
        send(&stream, &FromLeader::Taken)?;
        let mut state = self.0.lock();
        let works = state.working.get(&node).and_then(Weak::upgrade);
        let works = works.is_some_and(|link| link.lost_why().is_none());
        let twice = state.waiting.insert(node, Waiting { stream, listens }).is_some() || works;
        drop(state);
        if twice {
            // One that was cut off without a word is known to be lost within half a minute.
            tracing::warn!(
                node,
                of,
                "a node has come while another of its number is there: is `node.rank` given twice?"
            );
        } else {
            tracing::info!(node, of, "a node has come");
        }
        self.0.changed.notify_all();
        Ok(())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each entry is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Nodes").field(&self.0.spec).finish()
    }
}

/// All nodes together, until one is lost or this is dropped.
pub(crate) struct Session {
    /// Of the ranks here.
    pub(crate) ways: SessionWays,
    /// To each other node.
    pub(crate) links: Vec<Link>,
}

/// How ranks here reach the others.
pub(crate) enum SessionWays {
    /// On CPUs.
    Cores(Vec<GroupWays>),
    /// On GPUs.
    Gpus(Vec<NcclRankSlot>),
}

/// Ends what ranks here wait for, and why.
type End = Arc<dyn Fn(&str) + Send + Sync>;

/// The way to another node in a session. Dropping it ends the session there.
pub(crate) struct Link {
    state: Arc<LinkState>,
    ready: Mutex<Receiver<()>>,
}

struct LinkState {
    node: usize,
    of: usize,
    stream: TcpStream,
    /// Of the ranks here: they wait for that node's in vain once it is lost.
    ends: OnceLock<End>,
    lost: Mutex<Lost>,
    closing: AtomicBool,
}

#[derive(Default)]
struct Lost {
    why: Option<String>,
    tell: Option<Box<dyn FnOnce(String) + Send>>,
}

impl LinkState {
    /// Hears what the node says, until it says no more.
    fn listen(&self, ready: &Sender<()>) {
        loop {
            match receive(&self.stream, SMALL) {
                // Nobody may wait for it any more.
                Ok(FromNode::Ready) => drop(ready.send(())),
                Ok(FromNode::Failed { reason }) => return self.lose(&reason),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return self.lose("its connection is closed");
                }
                Err(error) => return self.lose(&error.to_string()),
            }
        }
    }

    fn lose(&self, why: &str) {
        let why = format!("node {} of {} is lost: {why}", self.node, self.of);
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.why.is_none() {
            lost.why = Some(why.clone());
        }
        let tell = lost.tell.take();
        drop(lost);
        if let Some(tell) = tell.filter(|_| !self.closing.load(Ordering::SeqCst)) {
            tell(why.clone());
        }
        // Behind it: lanes that fail of this would say less of why.
        self.ends.get().iter().for_each(|end| end(&why));
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// From now on the ranks here hear of its loss.
    ///
    /// # Errors
    /// It is lost already.
    fn ends_with(&self, end: End) -> io::Result<()> {
        let _ = self.ends.set(end);
        self.lost_why().map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    fn lost_why(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).why.clone()
    }
}

impl Link {
    /// Takes what is to hear why the node is lost, once it is.
    pub(crate) fn on_loss(&self) -> OnLoss {
        let state = self.state.clone();
        Arc::new(move |tell| {
            let mut lost = state.lost.lock().unwrap_or_else(PoisonError::into_inner);
            match lost.why.clone() {
                Some(why) => {
                    drop(lost);
                    tell(why);
                }
                None => lost.tell = Some(tell),
            }
        })
    }

    /// The lane of that node's ranks: it sends plans on.
    pub(crate) fn lane(self) -> Build<Follow<VerifyWork>> {
        let link = Arc::new(Mutex::new(Some(self)));
        Arc::new(move |_| {
            let taken = link.lock().unwrap_or_else(PoisonError::into_inner).take();
            let link = taken.ok_or_else(|| ServiceError::Node("its session has ended".to_owned()))?;
            link.wait_until_ready()?;
            Ok(Box::new(move |Follow(work): Follow<VerifyWork>| {
                if let Some(why) = link.state.lost_why() {
                    panic!("{why}");
                }
                let frame = FromLeader::Plan(Box::new(PlanFrame::of(&work)));
                if let Err(error) = send(&link.state.stream, &frame) {
                    link.state.lose(&format!("it takes no plan: {error}"));
                    panic!("{}", link.state.lost_why().unwrap_or_default());
                }
                None
            }) as Run<Follow<VerifyWork>>)
        })
    }

    fn wait_until_ready(&self) -> Result<(), ServiceError> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(BUILDING);
        ready.map_err(|_| {
            let late = || {
                format!("node {} has not built its lanes within {} s", self.state.node, BUILDING.as_secs())
            };
            ServiceError::Node(self.state.lost_why().unwrap_or_else(late))
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.closing.store(true, Ordering::SeqCst);
        let _ = self.state.stream.shutdown(Shutdown::Both);
    }
}
