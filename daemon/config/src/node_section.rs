//! `node`: which of several nodes this is, where the first of them is found, and what starters of nodes say of that.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use faser_actors::NodePlace;
use serde_json::Value;

use super::sizes::seconds;
use super::{DeviceConfig, DraftPlace};
use crate::fields::{Fault, FieldError, Fields, required};

/// Nodes of a group.
const MOST_NODES: usize = 64;
/// Where the first node is found if nobody says a port: that of PyTorch's rendezvous.
const PORT: u16 = 29_500;

/// One of several nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Which.
    pub place: NodePlace,
    /// Host and port of the first node, as the others find it.
    pub rendezvous: String,
    /// Where the first node listens, if not there.
    pub listen: Option<SocketAddr>,
    /// How long the first node waits for all others, each time.
    pub join_timeout: Duration,
    /// Whether it is to work with the others; no key says so: who looks at a config alone does without.
    pub joins: bool,
}

impl NodeConfig {
    /// Where the first node listens.
    ///
    /// # Errors
    /// The name of the rendezvous has no address.
    pub fn listens(&self) -> std::io::Result<SocketAddr> {
        if let Some(listen) = self.listen {
            return Ok(listen);
        }
        let no_address = || std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
        self.rendezvous.to_socket_addrs()?.next().ok_or_else(no_address)
    }
}

/// Reads the section; nothing where there is one node. `environment` is asked for what starters say.
pub(super) fn node(
    mut fields: Fields<'_>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<NodeConfig>, FieldError> {
    let auto = Value::from("auto");
    let asks = fields.value("rank");
    let of = fields.size("of", 1..=MOST_NODES)?;
    let rendezvous = fields.text("rendezvous")?.map(str::to_owned);
    let listen = fields.text("listen")?;
    let listen = listen.map(|text| {
        let wanted = "an address and a port, such as 0.0.0.0:29500";
        text.parse().map_err(|_| fields.wrong_value("listen", wanted, &text.into()))
    });
    let listen = listen.transpose()?;
    let join_timeout = seconds(&mut fields, "join_timeout_s", 1..=86_400, 600)?;
    let Some(asks) = asks else {
        if of.is_some() || rendezvous.is_some() || listen.is_some() {
            let problem = "is missing: the number of this node, from 0 on, or `auto`, which takes it from what LeaderWorkerSet or Slurm say";
            return Err(fields.missing("rank", problem));
        }
        fields.finish()?;
        return Ok(None);
    };
    let started = (*asks == auto).then(|| Started::by(environment)).transpose();
    let started = started.map_err(|problem| fields.wrong("rank", problem))?;
    let rank = match &started {
        Some(started) => started.rank,
        None => fields.size("rank", 0..=MOST_NODES - 1)?.unwrap_or(0),
    };
    let of = required(of.or(started.as_ref().map(|started| started.of)), &fields, "of")?;
    let Some(rendezvous) = rendezvous.or(started.map(|started| started.leader)) else {
        let problem = "is missing: host and port of the first node, such as 10.0.0.1:29500";
        return Err(fields.missing("rendezvous", problem));
    };
    let rendezvous = with_port(&rendezvous).ok_or_else(|| {
        let wanted = "host and port of the first node, such as 10.0.0.1:29500";
        fields.wrong_value("rendezvous", wanted, &rendezvous.clone().into())
    })?;
    if rank >= of {
        let problem = format!("is {rank}, but there are {of} nodes (`node.of`): they count from 0");
        return Err(fields.wrong("rank", problem));
    }
    fields.finish()?;
    let place = NodePlace { rank, of };
    Ok((of > 1).then_some(NodeConfig { place, rendezvous, listen, join_timeout, joins: true }))
}

/// Looks that a device can be one of several nodes'.
pub(super) fn fits(node: &NodeConfig, device: &DeviceConfig) -> Result<(), FieldError> {
    let (of, ranks) = (node.place.of, device.target_ranks());
    let refuse = |problem: String| Err(FieldError::new("node.of", Fault::Value, problem));
    if !ranks.is_multiple_of(of) {
        return refuse(format!(
            "is {of}, but the target has {ranks} ranks (`device.tensor_parallel` times `device.pipeline_parallel`): each node has as many as every other"
        ));
    }
    let unfit = if device.replicas > 1 {
        "`device.replicas` must be 1: start more groups of nodes behind a router"
    } else if device.draft_placement != DraftPlace::First {
        "the draft is on the first node: leave `device.draft_placement` out"
    } else {
        return Ok(());
    };
    refuse(format!("is {of}, and over several nodes {unfit}"))
}

/// With the usual port, if it has none; nothing if it is no host.
fn with_port(text: &str) -> Option<String> {
    let fits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
    let port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    match text.rsplit_once(':') {
        // Of an address of IPv6 the port stands behind a bracket.
        Some((host, number)) if !host.contains(':') || host.ends_with(']') => {
            (fits && !host.is_empty() && port(number)).then(|| text.to_owned())
        }
        Some(_) => fits.then(|| format!("[{}]:{PORT}", text.trim_matches(['[', ']']))),
        None => fits.then(|| format!("{text}:{PORT}")),
    }
}

/// What a starter of nodes says.
#[derive(Debug, PartialEq, Eq)]
struct Started {
    rank: usize,
    of: usize,
    leader: String,
}

impl Started {
    /// By LeaderWorkerSet's variables, else by Slurm's.
    fn by(environment: &dyn Fn(&str) -> Option<String>) -> Result<Started, String> {
        let number = |name: &str| {
            let text = environment(name).ok_or_else(|| format!("is `auto`, but {name} is not set"))?;
            text.trim().parse().map_err(|_| format!("is `auto`, but {name} is `{text}`, which is no number"))
        };
        let text = |name: &str| environment(name).ok_or_else(|| format!("is `auto`, but {name} is not set"));
        if environment("LWS_LEADER_ADDRESS").is_some() {
            let (rank, of) = (number("LWS_WORKER_INDEX")?, number("LWS_GROUP_SIZE")?);
            return Ok(Started { rank, of, leader: text("LWS_LEADER_ADDRESS")? });
        }
        if environment("SLURM_NODEID").is_some() {
            let nodes = environment("SLURM_STEP_NODELIST").map_or_else(|| text("SLURM_JOB_NODELIST"), Ok)?;
            let count = if environment("SLURM_STEP_NUM_NODES").is_some() {
                "SLURM_STEP_NUM_NODES"
            } else {
                "SLURM_JOB_NUM_NODES"
            };
            let (rank, of) = (number("SLURM_NODEID")?, number(count)?);
            return Ok(Started { rank, of, leader: first_host(&nodes) });
        }
        Err("is `auto`, but neither LeaderWorkerSet (LWS_LEADER_ADDRESS) nor Slurm (SLURM_NODEID) has started this: say the number".to_owned())
    }
}

/// The first of a list of Slurm's, such as `rack[1-2]gpu[07-09,12],big3`: rack1gpu07.
fn first_host(list: &str) -> String {
    let (mut host, mut within, mut past) = (String::new(), false, false);
    for letter in list.chars() {
        match letter {
            '[' => (within, past) = (true, false),
            ']' => within = false,
            ',' if !within => break,
            // Of what brackets hold the first number counts.
            ',' | '-' if within => past = true,
            _ if within && past => {}
            _ => host.push(letter),
        }
    }
    host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starters_say_which_node_this_is_and_where_the_first_is() {
        let of = |pairs: &'static [(&str, &str)]| {
            Started::by(&move |name| {
                pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let lws = of(&[
            ("LWS_LEADER_ADDRESS", "faser-0.faser.ns"),
            ("LWS_WORKER_INDEX", "1"),
            ("LWS_GROUP_SIZE", "2"),
        ]);
        assert_eq!(lws, Ok(Started { rank: 1, of: 2, leader: "faser-0.faser.ns".to_owned() }));
        let slurm = of(&[
            ("SLURM_NODEID", "0"),
            ("SLURM_JOB_NUM_NODES", "4"),
            ("SLURM_JOB_NODELIST", "gpu[07-09,12]"),
        ]);
        assert_eq!(slurm, Ok(Started { rank: 0, of: 4, leader: "gpu07".to_owned() }));
        assert!(of(&[]).unwrap_err().contains("neither LeaderWorkerSet"));
        let half = of(&[("LWS_LEADER_ADDRESS", "x"), ("LWS_WORKER_INDEX", "one"), ("LWS_GROUP_SIZE", "2")]);
        assert!(half.unwrap_err().contains("LWS_WORKER_INDEX is `one`"));
        assert!(of(&[("SLURM_NODEID", "0")]).unwrap_err().contains("SLURM_JOB_NODELIST is not set"));
    }

    #[test]
    fn the_first_host_of_slurms_lists() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("gpu[07-09,12],big3", "gpu07"),
            ("a1,gpu[07-09]", "a1"),
            ("n[3]", "n3"),
            ("r[1-2]-ib,x", "r1-ib"),
            ("rack[1-2]n[01-10],x", "rack1n01"),
            ("gpu-a[3,5]", "gpu-a3"),
        ] {
            assert_eq!(first_host(list), first, "{list}");
        }
    }

    #[test]
    fn a_rendezvous_has_a_port() {
        for (text, found) in [
            ("10.0.0.1", Some("10.0.0.1:29500")),
            ("10.0.0.1:7000", Some("10.0.0.1:7000")),
            ("faser-0.faser", Some("faser-0.faser:29500")),
            ("[::1]:7000", Some("[::1]:7000")),
            ("::1", Some("[::1]:29500")),
            ("host:0", None),
            ("host:port", None),
            (":7000", None),
            ("", None),
            ("a b", None),
            ("http://a:29500", None),
        ] {
            assert_eq!(with_port(text).as_deref(), found, "{text}");
        }
    }
}
