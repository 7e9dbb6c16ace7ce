//! NUMA nodes: which cores are on which, and how lanes keep to few of them.

use crate::proc::parse_core_list;
use serde::Serialize;
use std::{cmp::Reverse, fs, path::Path};

/// A NUMA node: cores that share a memory of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The system's number of it.
    pub number: usize,
    /// Cores of it that the process may use, ascending; never empty.
    pub cores: Vec<usize>,
}

/// The nodes of `cores`, by number, from a folder such as `/sys/devices/system/node`; none if it does not know each core
/// exactly once. Nodes without a core of these (memory alone) are left out.
pub(crate) fn read(folder: &Path, cores: &[usize]) -> Vec<Node> {
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let mut found = parse_core_list(&fs::read_to_string(entry.path().join("cpulist")).ok()?)?;
        found.retain(|core| cores.contains(core));
        (!found.is_empty()).then_some(Node { number, cores: found })
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut nodes: Vec<Node> = entries.filter_map(node).collect();
    nodes.sort_unstable_by_key(|node| node.number);
    let mut found: Vec<usize> = nodes.iter().flat_map(|node| node.cores.iter().copied()).collect();
    found.sort_unstable();
    if found == cores { nodes } else { Vec::new() }
}

/// `count` cores, node by node: all of the first node that has so many, else of as few nodes as can be, the largest first.
/// The first of `cores` where no nodes are known.
pub(crate) fn choose(cores: &[usize], nodes: &[Node], count: usize) -> Vec<usize> {
    if nodes.is_empty() {
        return cores[..count.min(cores.len())].to_vec();
    }
    if let Some(node) = nodes.iter().find(|node| node.cores.len() >= count) {
        return node.cores[..count].to_vec();
    }
    let mut nodes: Vec<&Node> = nodes.iter().collect();
    nodes.sort_by_key(|node| Reverse(node.cores.len()));
    nodes.into_iter().flat_map(|node| node.cores.iter().copied()).take(count).collect()
}

/// What is left of `lane`, and `share` of its cores: the last ones of the smallest node that has so many in the lane, so that they keep to
/// one; else the last ones of the lane.
pub(crate) fn split(lane: &[usize], nodes: &[Node], share: usize) -> (Vec<usize>, Vec<usize>) {
    let in_lane = |node: &Node| -> Vec<usize> {
        lane.iter().copied().filter(|core| node.cores.contains(core)).collect()
    };
    let parts = nodes.iter().map(in_lane).filter(|part| part.len() >= share);
    // Of equals the one that is last in the lane.
    let place = |part: &Vec<usize>| lane.iter().position(|core| part.first() == Some(core));
    let part = parts.min_by_key(|part| (part.len(), Reverse(place(part)))).unwrap_or_else(|| lane.to_vec());
    let taken = &part[part.len() - share..];
    (lane.iter().copied().filter(|core| !taken.contains(core)).collect(), taken.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(number: usize, cores: impl IntoIterator<Item = usize>) -> Node {
        Node { number, cores: cores.into_iter().collect() }
    }

    /// A folder like `/sys/devices/system/node`, gone with the value.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str, lists: &[(&str, &str)]) -> Folder {
            let folder =
                Folder(std::env::temp_dir().join(format!("faser-nodes-{name}-{}", std::process::id())));
            for (node, list) in lists {
                fs::create_dir_all(folder.0.join(node)).unwrap();
                fs::write(folder.0.join(node).join("cpulist"), list).unwrap();
            }
            folder
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn nodes_are_read_with_the_cores_that_may_be_used() {
        let lists = [
            ("node10", "6-7\n"),
            ("node0", "0-1,4\n"),
            ("node2", "2-3,5\n"),
            ("node3", "\n"),
            ("power", "0\n"),
        ];
        let folder = Folder::new("read", &lists);
        let all: Vec<usize> = (0..8).collect();
        let expected = vec![node(0, [0, 1, 4]), node(2, [2, 3, 5]), node(10, [6, 7])];
        assert_eq!(read(&folder.0, &all), expected);
        assert_eq!(read(&folder.0, &[1, 3, 5]), [node(0, [1]), node(2, [3, 5])]);
        // A core that no node has: nothing is known.
        assert_eq!(read(&folder.0, &[1, 8]), []);
        assert_eq!(read(&folder.0.join("missing"), &all), []);
        let twice = Folder::new("twice", &[("node0", "0-1"), ("node1", "1")]);
        assert_eq!(read(&twice.0, &[0, 1]), []);
    }

    #[test]
    fn lanes_keep_to_whole_nodes() {
        // Numbered in turns, as some machines do it.
        let nodes = [node(0, [0, 3, 6]), node(1, [1, 4, 7, 9]), node(2, [2, 5, 8])];
        let cores: Vec<usize> = (0..10).collect();
        let choose = |count| choose(&cores, &nodes, count);
        assert_eq!(choose(2), [0, 3]);
        assert_eq!(choose(3), [0, 3, 6]);
        assert_eq!(choose(4), [1, 4, 7, 9]);
        assert_eq!(choose(6), [1, 4, 7, 9, 0, 3]);
        assert_eq!(choose(10), [1, 4, 7, 9, 0, 3, 6, 2, 5, 8]);
        let lane = choose(10);
        assert_eq!(split(&lane, &nodes, 1), (vec![1, 4, 7, 9, 0, 3, 6, 2, 5], vec![8]));
        assert_eq!(split(&lane, &nodes, 3), (vec![1, 4, 7, 9, 0, 3, 6], vec![2, 5, 8]));
        // No other node has four.
        assert_eq!(split(&lane, &nodes, 4), (vec![0, 3, 6, 2, 5, 8], vec![1, 4, 7, 9]));
        assert_eq!(split(&lane, &nodes, 5), (vec![1, 4, 7, 9, 0], vec![3, 6, 2, 5, 8]));
    }

    #[test]
    fn one_node_or_none_known_is_as_if_there_were_no_nodes() {
        let cores = [1, 2, 5, 9];
        for nodes in [vec![], vec![node(3, cores)]] {
            for count in 1..=4 {
                let lane = choose(&cores, &nodes, count);
                assert_eq!(lane, cores[..count]);
                for share in 1..count {
                    let (left, taken) = split(&lane, &nodes, share);
                    assert_eq!((&left[..], &taken[..]), lane.split_at(count - share));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_lane_spans_more_nodes_than_it_must(of in proptest::collection::vec(0usize..4, 1..40)) {
            let nodes: Vec<Node> = (0..4)
                .map(|number| node(number, (0..of.len()).filter(|core| of[*core] == number)))
                .filter(|node| !node.cores.is_empty())
                .collect();
            let cores: Vec<usize> = (0..of.len()).collect();
            let spanned = |lane: &[usize]| nodes.iter().filter(|node| lane.iter().any(|core| node.cores.contains(core))).count();
            let mut sizes: Vec<usize> = nodes.iter().map(|node| node.cores.len()).collect();
            sizes.sort_unstable_by_key(|size| Reverse(*size));
            for count in 1..=cores.len() {
                let lane = choose(&cores, &nodes, count);
                let mut sorted = lane.clone();
                sorted.sort_unstable();
                sorted.dedup();
                prop_assert_eq!(sorted.len(), count);
                let least = (1..).find(|most| sizes.iter().take(*most).sum::<usize>() >= count);
                prop_assert_eq!(Some(spanned(&lane)), least);
                for share in 1..count {
                    let (left, taken) = split(&lane, &nodes, share);
                    prop_assert_eq!((left.len(), taken.len()), (count - share, share));
                    let mut both = [left, taken.clone()].concat();
                    both.sort_unstable();
                    prop_assert_eq!(&both, &sorted);
                    let largest = nodes.iter().map(|node| lane.iter().filter(|core| node.cores.contains(core)).count()).max();
                    prop_assert!(spanned(&taken) == 1 || Some(share) > largest);
                }
            }
        }
    }
}
