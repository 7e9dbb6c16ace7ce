//! The sockets between ranks of a session: of two nodes the later one connects.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use faser_kernels::collective::{Connection, GroupWays, Mesh, SocketGroup, within_process};

use super::NodePlace;
use super::frames::{First, Way, send};

/// Until all ranks of a session are connected.
const CONNECTING: Duration = Duration::from_secs(60);

/// Ways of others to ranks here that came, until their session takes them: of each two ranks the latest.
pub(super) struct Ways {
    own: Range<usize>,
    ranks: usize,
    came: Mutex<HashMap<(usize, usize), (u64, TcpStream)>>,
    changed: Condvar,
}

impl Ways {
    /// To the ranks `own`, of so many.
    pub(super) fn new(own: Range<usize>, ranks: usize) -> Ways {
        Ways { own, ranks, came: Mutex::default(), changed: Condvar::new() }
    }

    /// One that has come.
    ///
    /// # Errors
    /// There are no such ranks here and elsewhere.
    pub(super) fn put(&self, Way { session, from, to }: Way, stream: TcpStream) -> io::Result<()> {
        if !self.own.contains(&to) || self.own.contains(&from) || from >= self.ranks {
            let problem = format!("there is no way from rank {from} to rank {to}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        self.came.lock().unwrap_or_else(PoisonError::into_inner).insert((from, to), (session, stream));
        self.changed.notify_all();
        Ok(())
    }

    /// Waits for one, until then. `goes_on` says whether it is still wanted.
    fn take(&self, way: Way, until: Instant, goes_on: &dyn Fn() -> bool) -> io::Result<TcpStream> {
        let mut came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if came.get(&(way.from, way.to)).is_some_and(|(session, _)| *session == way.session)
                && let Some((_, stream)) = came.remove(&(way.from, way.to))
            {
                return Ok(stream);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !goes_on() {
                let problem = format!("rank {} has not connected to rank {}", way.from, way.to);
                return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
            }
            let wait = left.min(Duration::from_millis(100));
            came = self.changed.wait_timeout(came, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Ranks of a session, as a node sees them.
pub(super) struct Joining<'a> {
    pub(super) place: NodePlace,
    /// Ranks and stages of the target.
    pub(super) ranks: usize,
    pub(super) stages: usize,
    pub(super) session: u64,
    /// Where the nodes before this one are found.
    pub(super) before: &'a [SocketAddr],
    pub(super) deadline: Duration,
}

impl Joining<'_> {
    fn own(&self) -> Range<usize> {
        self.place.ranks(self.ranks)
    }

    /// Connects the ranks of this node with all others.
    ///
    /// # Errors
    /// One of them does not come, or the system refuses.
    pub(super) fn join(&self, ways: &Ways, goes_on: &dyn Fn() -> bool) -> io::Result<Vec<Arc<Mesh>>> {
        let (own, until) = (self.own(), Instant::now() + CONNECTING);
        let mut within = within_process(own.len())?;
        let mut of_rank: Vec<Vec<Option<Connection>>> =
            own.clone().map(|_| (0..self.ranks).map(|_| None).collect()).collect();
        // All that this node has to begin come first, so that no two wait for each other.
        for (here, connections) in own.clone().zip(&mut of_rank) {
            for (there, connection) in connections.iter_mut().enumerate().take(own.start) {
                let address = self.before[there / own.len()];
                let stream = TcpStream::connect_timeout(&address, CONNECTING)?;
                stream.set_nodelay(true)?;
                send(&stream, &First::Way(Way { session: self.session, from: here, to: there }))?;
                *connection = Some(Connection::Tcp(stream));
            }
        }
        for (place, connections) in of_rank.iter_mut().enumerate() {
            let here = own.start + place;
            for other in 0..own.len() {
                connections[own.start + other] = within[place][other].take();
            }
            for (there, connection) in connections.iter_mut().enumerate().skip(own.end) {
                let way = Way { session: self.session, from: there, to: here };
                *connection = Some(Connection::Tcp(ways.take(way, until, goes_on)?));
            }
        }
        let meshes =
            own.zip(of_rank).map(|(rank, peers)| Mesh::new(rank, peers, self.deadline).map(Arc::new));
        meshes.collect()
    }

    /// A rank's ways by its mesh.
    pub(super) fn ways(&self, rank: usize, mesh: &Arc<Mesh>) -> GroupWays {
        let width = self.ranks / self.stages;
        let stage = rank / width;
        let group = |members| Arc::new(SocketGroup::new(mesh, members));
        GroupWays { group: group(0..self.ranks), stage: group(stage * width..(stage + 1) * width) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn ways_are_of_ranks_that_there_are_and_of_each_two_the_latest_counts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ways = Ways::new(0..2, 4);
        let way = |session, from, to| Way { session, from, to };
        for (from, to) in [(0, 1), (4, 0), (2, 2), (2, usize::MAX)] {
            assert!(ways.put(way(7, from, to), stream()).is_err(), "{from} to {to}");
        }
        for session in 0..100 {
            ways.put(way(session, 2, 1), stream()).unwrap();
        }
        assert_eq!(ways.came.lock().unwrap().len(), 1);
        let soon = Instant::now() + Duration::from_millis(50);
        assert!(ways.take(way(98, 2, 1), soon, &|| true).is_err());
        assert!(ways.take(way(99, 2, 1), soon, &|| true).is_ok());
        let begun = Instant::now();
        assert!(ways.take(way(100, 2, 1), begun + Duration::from_secs(60), &|| false).is_err());
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for a session that has ended");
    }
}
