//! Collectives of ranks in several processes, on one machine or on many: a socket for each two of them.
//!
//! ```text
//! call of a rank:  what it brings goes to the others ── what they bring is read, as it comes ── added up from rank 0 on
//! ```
//! Both directions go on at the same time, so that ranks which all write first do not wait for each other for ever. Calls are told apart by
//! their order alone: between two ranks bytes come in the order in which they were sent. What travels says which call it is of, and a rank
//! that makes another one is found out.
//!
//! Whoever dies closes his sockets, which ends the group for all. A rank from which nothing comes for longer than the deadline is taken for lost.

use super::{Collective, CollectiveError, HostCollective};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank spins before it sleeps, as in a group of threads.
const SPIN: Duration = Duration::from_micros(30);
/// Between two looks at whether somebody ended the group.
const LOOK: Duration = Duration::from_millis(100);
/// Which call, and how many numbers come: before each of them.
const HEADER: usize = 16;

/// A connection of two ranks.
#[derive(Debug)]
pub enum Connection {
    /// To another machine, or to another process.
    Tcp(TcpStream),
    /// Within a process.
    Unix(UnixStream),
}

/// One rank's connections to all others. Dropping it is leaving: the group is ended.
pub struct Mesh {
    rank: usize,
    /// By rank; none to itself.
    peers: Vec<Option<Connection>>,
    deadline: Duration,
    aborted: OnceLock<String>,
    buffers: Mutex<Buffers>,
}

/// What travels, kept from call to call.
#[derive(Default)]
struct Buffers {
    outgoing: Vec<u8>,
    /// By rank.
    incoming: Vec<Vec<u8>>,
    /// How far each is, by rank: sent to it, come from it.
    sent: Vec<usize>,
    come: Vec<usize>,
    /// What this rank brings to a sum, which it becomes.
    own: Vec<f32>,
}

/// A group of some of a mesh's ranks: all of them, or those of a stage.
pub struct SocketGroup {
    mesh: Arc<Mesh>,
    /// Ascending.
    members: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Call {
    AllReduceSum = 0xfa5e_0001,
    AllGather = 0xfa5e_0002,
    Broadcast = 0xfa5e_0003,
}

impl Mesh {
    /// The ways of `rank` to the others, one for each rank but itself.
    ///
    /// # Errors
    /// A socket cannot be made ready.
    ///
    /// # Panics
    /// If there is none to a rank, or one to itself.
    pub fn new(rank: usize, peers: Vec<Option<Connection>>, deadline: Duration) -> io::Result<Mesh> {
        for (peer, connection) in peers.iter().enumerate() {
            assert_eq!(
                connection.is_none(),
                peer == rank,
                "a connection to each other rank: {peer} of {rank}"
            );
            match connection {
                Some(Connection::Tcp(stream)) => {
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                }
                Some(Connection::Unix(stream)) => stream.set_nonblocking(true)?,
                None => {}
            }
        }
        let ranks = peers.len();
        let incoming = (0..ranks).map(|_| Vec::new()).collect();
        let buffers = Buffers { incoming, sent: vec![0; ranks], come: vec![0; ranks], ..Buffers::default() };
        Ok(Mesh { rank, peers, deadline, aborted: OnceLock::new(), buffers: Mutex::new(buffers) })
    }

    /// Ends all groups of this rank: calls that wait and all later ones fail, here and on every other rank. The first reason stays.
    pub fn abort(&self, why: &str) {
        let _ = self.aborted.set(why.to_owned());
        for peer in self.peers.iter().flatten() {
            // It may be closed already.
            let _ = match peer {
                Connection::Tcp(stream) => stream.shutdown(Shutdown::Both),
                Connection::Unix(stream) => stream.shutdown(Shutdown::Both),
            };
        }
    }

    /// Sends `own` to the ranks of `to`, and takes what those of `from` send: `len` numbers each, left in the buffers.
    fn exchange(
        &self,
        buffers: &mut Buffers,
        call: Call,
        (own, to): (&[f32], Range<usize>),
        (len, from): (usize, Range<usize>),
    ) -> Result<(), CollectiveError> {
        let Buffers { outgoing, incoming, sent, come, .. } = buffers;
        outgoing.clear();
        if !to.is_empty() {
            outgoing.extend((call as u64).to_le_bytes());
            outgoing.extend((own.len() as u64).to_le_bytes());
            own.iter().for_each(|value| outgoing.extend(value.to_le_bytes()));
        }
        let others = |range: Range<usize>| range.filter(|rank| *rank != self.rank);
        let whole = HEADER + len * size_of::<f32>();
        for rank in others(to.clone()) {
            sent[rank] = 0;
        }
        for rank in others(from.clone()) {
            come[rank] = 0;
            incoming[rank].resize(whole, 0);
        }
        let mut moved_at = Instant::now();
        loop {
            if let Some(why) = self.aborted.get() {
                return Err(CollectiveError::Aborted { why: why.clone() });
            }
            let mut moved = false;
            for rank in others(to.clone()) {
                moved |= self.send(rank, outgoing, &mut sent[rank])?;
            }
            for rank in others(from.clone()) {
                let before = come[rank];
                // Not a byte of the next call is taken: it may be of another length.
                let end = if before < HEADER { HEADER } else { whole };
                moved |= self.take(rank, &mut incoming[rank][..end], &mut come[rank])?;
                if before < HEADER && come[rank] >= HEADER {
                    self.same_call(rank, &incoming[rank], (call, len))?;
                }
            }
            let awaited = others(from.clone()).find(|rank| come[*rank] < whole);
            let behind = others(to.clone()).find(|rank| sent[*rank] < outgoing.len());
            let Some(missing) = awaited.or(behind) else { return Ok(()) };
            if moved {
                moved_at = Instant::now();
                continue;
            }
            let silent = moved_at.elapsed();
            if silent > self.deadline {
                let (ranks, within) = (self.peers.len(), self.deadline);
                return Err(self.over(CollectiveError::Deadline { missing, ranks, within }));
            }
            if silent < SPIN {
                std::hint::spin_loop();
                continue;
            }
            let reads =
                others(from.clone()).filter(|rank| come[*rank] < whole).map(|rank| (rank, PollFlags::IN));
            let writes = others(to.clone())
                .filter(|rank| sent[*rank] < outgoing.len())
                .map(|rank| (rank, PollFlags::OUT));
            let wanted = reads.chain(writes);
            let mut fds: Vec<PollFd<'_>> = wanted
                .filter_map(|(rank, flags)| {
                    Some(PollFd::from_borrowed_fd(self.peers[rank].as_ref()?.fd(), flags))
                })
                .collect();
            let wait =
                Timespec::try_from(LOOK.min(self.deadline)).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
            // Interrupted or not: all is looked at again.
            let _ = poll(&mut fds, Some(&wait));
        }
    }

    /// As much of `bytes` as goes, from `sent` on. Whether anything went.
    fn send(&self, rank: usize, bytes: &[u8], sent: &mut usize) -> Result<bool, CollectiveError> {
        if *sent == bytes.len() {
            return Ok(false);
        }
        let (peer, left) = (self.peer(rank), &bytes[*sent..]);
        match match peer {
            Connection::Tcp(stream) => (&*stream).write(left),
            Connection::Unix(stream) => (&*stream).write(left),
        } {
            Ok(0) => Err(self.lost(rank, "its connection is closed")),
            Ok(count) => {
                *sent += count;
                Ok(true)
            }
            Err(error) => self.later(rank, &error),
        }
    }

    /// As much as has come, from `come` on, `bytes` at most. Whether anything has.
    fn take(&self, rank: usize, bytes: &mut [u8], come: &mut usize) -> Result<bool, CollectiveError> {
        if *come == bytes.len() {
            return Ok(false);
        }
        let (peer, left) = (self.peer(rank), &mut bytes[*come..]);
        match match peer {
            Connection::Tcp(stream) => (&*stream).read(left),
            Connection::Unix(stream) => (&*stream).read(left),
        } {
            Ok(0) => Err(self.lost(rank, "its connection is closed")),
            Ok(count) => {
                *come += count;
                Ok(true)
            }
            Err(error) => self.later(rank, &error),
        }
    }

    fn later(&self, rank: usize, error: &io::Error) -> Result<bool, CollectiveError> {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(false),
            _ => Err(self.lost(rank, &error.to_string())),
        }
    }

    fn same_call(&self, rank: usize, header: &[u8], own: (Call, usize)) -> Result<(), CollectiveError> {
        let word =
            |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes of a header"));
        let expected = (own.0 as u64, own.1 as u64);
        let found = (word(0), word(8));
        if found == expected {
            return Ok(());
        }
        let calls = [Call::AllReduceSum, Call::AllGather, Call::Broadcast];
        let words = |(call, len): (u64, u64)| match calls.iter().find(|known| **known as u64 == call) {
            Some(call) => format!("{call:?} of {len}"),
            None => "what is no call".to_owned(),
        };
        let (found, expected) = (format!("calls {}", words(found)), words(expected));
        Err(self.over(CollectiveError::Differs { rank, found, expected }))
    }

    fn peer(&self, rank: usize) -> &Connection {
        self.peers[rank].as_ref().expect("no rank sends to itself")
    }

    fn lost(&self, rank: usize, why: &str) -> CollectiveError {
        self.over(CollectiveError::Aborted {
            why: format!("rank {rank} of {} is lost: {why}", self.peers.len()),
        })
    }

    /// The error by which the group ends. Where somebody ended it before, that is why.
    fn over(&self, error: CollectiveError) -> CollectiveError {
        let first = self.aborted.get().cloned();
        let why = match &error {
            CollectiveError::Aborted { why } => why.clone(),
            other => other.to_string(),
        };
        self.abort(&why);
        first.map_or(error, |why| CollectiveError::Aborted { why })
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.abort(&format!("rank {} has left", self.rank));
    }
}

impl Connection {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Connection::Tcp(stream) => stream.as_fd(),
            Connection::Unix(stream) => stream.as_fd(),
        }
    }
}

impl SocketGroup {
    /// The group of these ranks of the mesh, this one among them.
    ///
    /// # Panics
    /// If it is not, or the mesh has no such ranks.
    pub fn new(mesh: &Arc<Mesh>, members: Range<usize>) -> SocketGroup {
        assert!(members.contains(&mesh.rank) && members.end <= mesh.peers.len(), "{members:?} of a mesh");
        SocketGroup { mesh: mesh.clone(), members }
    }

    /// Shows what each member brought, in their order: of this rank `own`.
    fn show(&self, buffers: &Buffers, own: &[f32], mut to: impl FnMut(usize, &mut dyn Iterator<Item = f32>)) {
        for (place, rank) in self.members.clone().enumerate() {
            if rank == self.mesh.rank {
                to(place, &mut own.iter().copied());
            } else {
                to(place, &mut numbers(&buffers.incoming[rank]));
            }
        }
    }
}

/// Those behind a header.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    let word = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    bytes[HEADER..].chunks_exact(size_of::<f32>()).map(word)
}

impl Collective for SocketGroup {
    fn rank(&self) -> usize {
        self.mesh.rank - self.members.start
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let mut buffers = self.mesh.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let (to, from) = ((&*values, self.members.clone()), (values.len(), self.members.clone()));
        self.mesh.exchange(&mut buffers, Call::AllReduceSum, to, from)?;
        let mut own = std::mem::take(&mut buffers.own);
        own.clear();
        own.extend_from_slice(values);
        self.show(&buffers, &own, |place, theirs| {
            if place == 0 {
                values.iter_mut().zip(theirs).for_each(|(sum, theirs)| *sum = theirs);
            } else {
                values.iter_mut().zip(theirs).for_each(|(sum, theirs)| *sum += theirs);
            }
        });
        buffers.own = own;
        Ok(())
    }

    fn all_gather(&self, own: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        assert_eq!(all.len(), own.len() * self.ranks(), "all_gather: length of all");
        let mut buffers = self.mesh.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let (to, from) = ((own, self.members.clone()), (own.len(), self.members.clone()));
        self.mesh.exchange(&mut buffers, Call::AllGather, to, from)?;
        self.show(&buffers, own, |place, theirs| {
            all[place * own.len()..][..own.len()].iter_mut().zip(theirs).for_each(|(to, from)| *to = from);
        });
        Ok(())
    }

    fn abort(&self, why: &str) {
        self.mesh.abort(why);
    }
}

impl HostCollective for SocketGroup {
    fn broadcast(&self, root: usize, to: Range<usize>, values: &mut [f32]) -> Result<(), CollectiveError> {
        let of_mesh = |place: usize| place + self.members.start;
        let (root, to) = (of_mesh(root), of_mesh(to.start)..of_mesh(to.end));
        let (sends, takes) = (root == self.mesh.rank, to.contains(&self.mesh.rank));
        if !sends && !takes {
            return Ok(());
        }
        let mut buffers = self.mesh.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if sends {
            return self.mesh.exchange(&mut buffers, Call::Broadcast, (values, to), (0, 0..0));
        }
        self.mesh.exchange(&mut buffers, Call::Broadcast, (&[], 0..0), (values.len(), root..root + 1))?;
        values.iter_mut().zip(numbers(&buffers.incoming[root])).for_each(|(to, from)| *to = from);
        Ok(())
    }
}

impl fmt::Debug for SocketGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {:?}", self.mesh.rank, self.members)
    }
}

/// Connections between all ranks of a process: for each of them its ways to the others.
///
/// # Errors
/// The system has no more sockets.
pub fn within_process(ranks: usize) -> io::Result<Vec<Vec<Option<Connection>>>> {
    let mut ways: Vec<Vec<Option<Connection>>> =
        (0..ranks).map(|_| (0..ranks).map(|_| None).collect()).collect();
    for (low, high) in (0..ranks).flat_map(|low| (low + 1..ranks).map(move |high| (low, high))) {
        let (a, b) = UnixStream::pair()?;
        (ways[low][high], ways[high][low]) = (Some(Connection::Unix(a)), Some(Connection::Unix(b)));
    }
    Ok(ways)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::in_process;
    use std::thread;

    const PATIENT: Duration = Duration::from_secs(60);

    /// Runs every rank of a mesh on a thread of its own; what each returned.
    fn on_ranks<T: Send>(ranks: usize, deadline: Duration, run: impl Fn(Arc<Mesh>) -> T + Sync) -> Vec<T> {
        let run = &run;
        thread::scope(|scope| {
            let ways = within_process(ranks).unwrap().into_iter().enumerate();
            let meshes: Vec<_> =
                ways.map(|(rank, peers)| Arc::new(Mesh::new(rank, peers, deadline).unwrap())).collect();
            let threads: Vec<_> = meshes.into_iter().map(|mesh| scope.spawn(move || run(mesh))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
        })
    }

    fn all(mesh: &Arc<Mesh>) -> SocketGroup {
        SocketGroup::new(mesh, 0..mesh.peers.len())
    }

    fn value(rank: usize, call: usize, i: usize) -> f32 {
        ((rank * 7919 + call * 104_729 + i * 31) % 1013) as f32 * 1e-3 * 10f32.powi(rank as i32) - 0.3
    }

    /// What a group of threads computes, call after call, bit by bit; far more than the sockets hold in some of them.
    #[test]
    fn the_same_bits_as_a_group_of_threads() {
        let length = |call: usize| if call % 17 == 16 { 200_000 } else { 1 + call % 40 };
        fn calls(group: &dyn HostCollective, length: impl Fn(usize) -> usize) -> Vec<u32> {
            let mut bits = Vec::new();
            for call in 0..100 {
                let mut values: Vec<f32> = (0..length(call)).map(|i| value(group.rank(), call, i)).collect();
                group.all_reduce_sum(&mut values).unwrap();
                let mut gathered = vec![0.0; values.len().min(50) * group.ranks()];
                let own: Vec<f32> =
                    values.iter().take(50).map(|value| value * (1 + group.rank()) as f32).collect();
                group.all_gather(&own, &mut gathered).unwrap();
                let root = call % group.ranks();
                let mut sent: Vec<f32> = (0..length(call)).map(|i| value(group.rank(), call, i)).collect();
                group.broadcast(root, 0..group.ranks(), &mut sent).unwrap();
                for values in [values, gathered, sent] {
                    bits.extend(values.iter().map(|value| value.to_bits()));
                }
            }
            bits
        }
        for ranks in [1, 2, 3, 4] {
            let found = on_ranks(ranks, PATIENT, |mesh| calls(&all(&mesh), length));
            let expected = thread::scope(|scope| {
                let threads: Vec<_> = in_process(ranks, PATIENT)
                    .into_iter()
                    .map(|group| scope.spawn(move || calls(&group, length)))
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            assert!(found == expected, "{ranks} ranks");
        }
    }

    /// As stages of two ranks each hand a pass on, and tell all of its end.
    #[test]
    fn groups_of_some_ranks_and_of_all_go_in_turns() {
        let ends = on_ranks(4, PATIENT, |mesh| {
            let (world, rank) = (all(&mesh), mesh.rank);
            let first = rank / 2 * 2;
            let stage = SocketGroup::new(&mesh, first..first + 2);
            let mut x = [0.0; 3];
            for round in 0..200 {
                if rank < 2 {
                    x = [rank as f32 + 1.0, round as f32, f32::NAN];
                    stage.all_reduce_sum(&mut x).unwrap();
                }
                world.broadcast(0, 2..4, &mut x).unwrap();
                if rank >= 2 {
                    stage.all_reduce_sum(&mut x).unwrap();
                }
                world.broadcast(3, 0..4, &mut x).unwrap();
                assert_eq!(x[..2], [6.0, 4.0 * round as f32], "rank {rank}");
            }
            stage.rank()
        });
        assert_eq!(ends, [0, 1, 0, 1]);
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_and_ends_the_group() {
        let errors = on_ranks(3, Duration::from_millis(500), |mesh| {
            let group = all(&mesh);
            if mesh.rank == 1 {
                // Until the others have given it up.
                while mesh.take(0, &mut [0; 1], &mut 0).is_ok() {
                    thread::sleep(Duration::from_millis(1));
                }
                return String::new();
            }
            let first = group.all_reduce_sum(&mut [1.0]).unwrap_err();
            assert!(matches!(group.all_reduce_sum(&mut [1.0]), Err(CollectiveError::Aborted { .. })));
            first.to_string()
        });
        // Whoever is later hears that the other has left.
        assert!(
            errors.iter().any(|error| error.contains("rank 1 of 3 has not come within 500 ms")),
            "{errors:?}"
        );
        assert!(errors[0].contains("rank") && errors[2].contains("rank"), "{errors:?}");
    }

    #[test]
    fn who_leaves_ends_the_group_but_not_calls_that_all_have_come_to() {
        let outcomes = on_ranks(2, PATIENT, |mesh| {
            let done = all(&mesh).all_reduce_sum(&mut [1.0]);
            // Rank 1 leaves here.
            (done, (mesh.rank == 0).then(|| all(&mesh).all_reduce_sum(&mut [1.0])))
        });
        assert_eq!((&outcomes[0].0, &outcomes[1]), (&Ok(()), &(Ok(()), None)));
        let error = outcomes[0].1.clone().unwrap().unwrap_err().to_string();
        assert!(error.contains("rank 1 of 2 is lost"), "{error}");
    }

    #[test]
    fn abort_wakes_who_waits() {
        let errors = on_ranks(2, PATIENT, |mesh| {
            if mesh.rank == 1 {
                let waits = mesh.clone();
                return thread::scope(|scope| {
                    scope.spawn(move || {
                        thread::sleep(Duration::from_millis(20));
                        waits.abort("the node is lost");
                    });
                    all(&mesh).all_gather(&[1.0], &mut [0.0; 2]).unwrap_err()
                });
            }
            while mesh.take(1, &mut [0; 64], &mut 0).is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
            all(&mesh).all_gather(&[1.0], &mut [0.0; 2]).unwrap_err()
        });
        assert_eq!(errors[1], CollectiveError::Aborted { why: "the node is lost".to_owned() });
    }

    #[test]
    fn ranks_with_different_calls_are_told() {
        let errors = on_ranks(2, PATIENT, |mesh| {
            let group = all(&mesh);
            let found = match mesh.rank {
                0 => group.all_reduce_sum(&mut [1.0, 2.0]).unwrap_err().to_string(),
                _ => group.all_reduce_sum(&mut [1.0]).unwrap_err().to_string(),
            };
            // Both look before either leaves.
            thread::sleep(Duration::from_millis(50));
            found
        });
        let expected = [
            "AllReduceSum of 1, this rank AllReduceSum of 2",
            "AllReduceSum of 2, this rank AllReduceSum of 1",
        ];
        assert!(errors.iter().zip(expected).any(|(error, expected)| error.contains(expected)), "{errors:?}");
    }
}
