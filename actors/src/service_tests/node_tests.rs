//! A target over several nodes: threads of this process here, each with a shard and a way to the leader of its own.

use super::groups::{expected, read_all, split_in_stages, taken, tokens};
use super::*;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

use crate::node_target::NodeTarget;
use crate::nodes::{
    NodeControl, NodeError, NodeFacts, NodePlace, NodeSpec, NodeState, Nodes, NodesSpec, follow,
};

/// The nodes behind the leader; they end with this.
struct Followers {
    control: Arc<NodeControl>,
    threads: Vec<JoinHandle<Result<(), NodeError>>>,
    states: Arc<Mutex<Vec<(usize, NodeState)>>>,
}

impl Followers {
    fn start(specs: Vec<NodeSpec>) -> Followers {
        let (control, states) = (Arc::new(NodeControl::default()), Arc::new(Mutex::new(Vec::new())));
        let start = |spec: NodeSpec| {
            let (control, states) = (control.clone(), states.clone());
            std::thread::spawn(move || {
                let node = spec.place.rank;
                follow(&spec, &control, &mut |state| states.lock().expect("states").push((node, state)))
            })
        };
        Followers { threads: specs.into_iter().map(start).collect(), control, states }
    }

    /// After the leader has gone.
    fn end(self) {
        self.control.stop();
        for thread in self.threads {
            thread.join().expect("a node").expect("it was never refused");
        }
    }
}

/// A service whose target is split over nodes, `ranks` in so many stages, and its other nodes.
fn over_nodes(nodes: usize, (ranks, stages): (usize, usize)) -> (ServiceSpec, Nodes, Vec<NodeSpec>) {
    let mut spec = split_in_stages((ranks, stages), 1);
    let DeviceSpec::Cpu(cpu) = &mut spec.device else { panic!("a CPU") };
    let listening = Nodes::listen(NodesSpec {
        of: nodes,
        rendezvous: SocketAddr::from(([127, 0, 0, 1], 0)),
        facts: NodeFacts::of(&cpu.target[0], "a", cpu.isa),
        rank_deadline: PATIENCE,
        join_timeout: PATIENCE,
    });
    let listening = listening.expect("a place to listen");
    let place = |rank| NodePlace { rank, of: nodes };
    let follower = |rank| NodeSpec {
        place: place(rank),
        rendezvous: listening.address().to_string(),
        target: Box::new(NodeTarget::Cpu {
            shards: cpu.target[place(rank).ranks(ranks)].to_vec(),
            cores: Partition { cores: vec![0, 1] },
            isa: cpu.isa,
        }),
        facts: NodeFacts::of(&cpu.target[0], "a", cpu.isa),
    };
    let followers = (1..nodes).map(follower).collect();
    cpu.target.truncate(ranks / nodes);
    cpu.nodes = Some(listening.clone());
    (spec, listening, followers)
}

#[test]
fn nodes_give_the_tokens_of_one() {
    in_system(async {
        let expected = expected().await;
        for (nodes, ranks) in [(2, (2, 1)), (4, (4, 1)), (2, (4, 1)), (2, (2, 2)), (2, (4, 2)), (4, (4, 2))] {
            let (spec, listening, followers) = over_nodes(nodes, ranks);
            let followers = Followers::start(followers);
            let service = Service::start(spec).await.expect("a service");
            assert_eq!(tokens(&service, 4).await, expected, "{nodes} nodes, {ranks:?}");
            assert_whole(&service).await;
            assert!(service.view().totals.accepted_tokens > 0);
            service.stop().await;
            drop(listening);
            followers.end();
        }
    });
}

#[test]
fn a_node_that_is_cut_off_comes_again_and_streams_go_on() {
    in_system(async {
        let expected = expected().await;
        let (spec, listening, followers) = over_nodes(4, (4, 2));
        let followers = Followers::start(followers);
        let service = Service::start(spec).await.expect("a service");
        for cut in 0..3 {
            let streams = taken(&service, 4).await;
            let cuts = async {
                tokio::time::sleep(Duration::from_millis(3 + 7 * cut)).await;
                listening.cut(1 + cut as usize);
            };
            let (found, ()) = tokio::join!(read_all(streams), cuts);
            assert_eq!(found, expected, "cut {cut}");
            assert_whole(&service).await;
            until("the device serves", || service.ready()).await;
        }
        // A node that is lost while nobody works is noticed too.
        let lost = || {
            followers
                .states
                .lock()
                .expect("states")
                .iter()
                .filter(|(_, state)| matches!(state, NodeState::Ended(_)))
                .count()
        };
        let before = lost();
        listening.cut(2);
        until("all nodes have begun anew", || lost() >= before + 3 && service.ready()).await;
        assert_eq!(tokens(&service, 4).await, expected);
        service.stop().await;
        drop(listening);
        followers.end();
    });
}

#[test]
fn costs_are_measured_over_all_nodes() {
    let (spec, listening, followers) = over_nodes(2, (4, 2));
    let followers = Followers::start(followers);
    let costs = crate::profile(
        &crate::ProfileSpec {
            device: &spec.device,
            block_size: 16,
            max_rows: 16,
            max_context: 128,
            deterministic: false,
        },
        &mut |_, _| {},
    );
    assert_eq!(costs.expect("costs").len(), 2);
    drop((spec, listening));
    followers.end();
}

/// What a node would have of other weights, or by other kernels.
fn of(weights: &str, other: Option<Isa>) -> NodeFacts {
    let DeviceSpec::Cpu(cpu) = split_in_stages((2, 1), 1).device else { panic!("a CPU") };
    NodeFacts::of(&cpu.target[1], weights, other.unwrap_or(cpu.isa))
}

#[test]
fn nodes_that_have_something_else_are_refused_and_say_what() {
    let (_spec, listening, _) = over_nodes(2, (2, 1));
    let refusal = |change: fn(&mut NodeSpec)| {
        let (_, _, mut others) = over_nodes(2, (2, 1));
        let mut node = others.remove(0);
        node.rendezvous = listening.address().to_string();
        change(&mut node);
        follow(&node, &NodeControl::default(), &mut |_| {}).expect_err("it is refused").to_string()
    };
    let others = |node: &mut NodeSpec| node.facts = over_nodes(2, (4, 1)).2.remove(0).facts;
    assert!(refusal(others).contains("it has ranks 4 in stages 1, the leader 2 in stages 1"));
    let isa = refusal(|node| node.facts = of("a", Some(Isa::Portable)));
    assert!(isa.contains("kernels for portable") && isa.contains("`device.isa`"), "{isa}");
    assert!(refusal(|node| node.place.of = 3).contains("make `node.of` the same"));
    assert!(refusal(|node| node.place.rank = 0).contains("a `node.rank` of its own"));
    let other = refusal(|node| node.facts = of("b", None));
    assert!(other.contains("it has another target than the leader"), "{other}");
}

#[test]
fn a_node_that_does_not_come_is_named_and_strangers_are_none() {
    in_system(async {
        let (mut spec, _, _) = over_nodes(2, (4, 1));
        let DeviceSpec::Cpu(cpu) = &mut spec.device else { panic!("a CPU") };
        let facts = NodeFacts::of(&cpu.target[0], "a", cpu.isa);
        let nodes = Nodes::listen(NodesSpec {
            of: 2,
            rendezvous: SocketAddr::from(([127, 0, 0, 1], 0)),
            facts,
            rank_deadline: PATIENCE,
            join_timeout: Duration::from_millis(700),
        });
        let nodes = nodes.expect("a place to listen");
        // What no node says: nothing, too much, and what is no message.
        let mut held = Vec::new();
        for words in [&b""[..], &[0xff; 64], b"GET / HTTP/1.1\r\n\r\n", &[4, 0, 0, 0, 1, 2, 3, 4]] {
            let mut stream = TcpStream::connect(nodes.address()).expect("a connection");
            stream.write_all(words).expect("words");
            held.push(stream);
        }
        cpu.nodes = Some(nodes.clone());
        let error = Service::start(spec).await.err().expect("nobody comes").to_string();
        assert!(
            error.contains(&format!("node 1 of 2 (from 0) has not come to {}", nodes.address())),
            "{error}"
        );
    });
}
