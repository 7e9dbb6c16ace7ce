//! `topology`: a machine that is written down, so that `faser plan` can plan for one that is not at hand.

use std::path::Path;

use faser_topology::{CpuDevice, Gpu, Joined, Link, LinkKind, Node, Topology};
use serde_json::Value;

use super::raw::Document;
use super::sizes;
use crate::fields::{Fault, FieldError, Fields, whole, wrong_value};

/// More are no one machine.
const MOST_GPUS: usize = 64;

/// Reads the section: a mapping, or the path of a file that has one, from `folder` on.
pub(super) fn topology(root: &mut Fields<'_>, folder: &Path) -> Result<Option<Topology>, FieldError> {
    match root.value("topology") {
        None => Ok(None),
        Some(Value::String(file)) => {
            let wrong =
                |problem: String| FieldError::new("topology", Fault::Value, format!("{file}: {problem}"));
            let document = Document::read(&folder.join(file)).map_err(|error| wrong(error.to_string()))?;
            let fields = Fields::new("topology", document.root()).map_err(|error| wrong(error.message))?;
            machine(fields).map(Some).map_err(|error| wrong(error.message))
        }
        Some(value) => machine(Fields::new("topology", value)?).map(Some),
    }
}

fn machine(mut fields: Fields<'_>) -> Result<Topology, FieldError> {
    let name = fields.text("name")?.unwrap_or("a machine").to_owned();
    let host = match fields.object("host")? {
        Some(host) => self::host(host)?,
        None => return Err(fields.missing("host", "is missing: {cores: 8, memory: 32GiB}")),
    };
    let mut gpus = Vec::new();
    for (number, value) in fields.list("gpus")?.unwrap_or(&[]).iter().enumerate() {
        let path = format!("{}[{number}]", fields.path("gpus"));
        gpus.extend(some_gpus(Fields::new(path.as_str(), value)?)?);
        if gpus.len() > MOST_GPUS {
            return Err(FieldError::new(path, Fault::Value, format!("makes more than {MOST_GPUS} GPUs")));
        }
    }
    let mut links = Vec::new();
    for (number, value) in fields.list("links")?.unwrap_or(&[]).iter().enumerate() {
        let path = format!("{}[{number}]", fields.path("links"));
        links.extend(some_links(Fields::new(path, value)?, gpus.len())?);
    }
    fields.finish()?;
    Ok(Topology::new(name, host, gpus, &links))
}

fn host(mut fields: Fields<'_>) -> Result<CpuDevice, FieldError> {
    let name = fields.text("name")?.unwrap_or("a host").to_owned();
    let cores = fields.size("cores", 1..=4096)?;
    let memory_bytes = sizes::bytes(&mut fields, "memory", 1 << 20, 1 << 50)?;
    let numa = fields.size("numa_nodes", 1..=64)?.unwrap_or(1);
    let (Some(cores), Some(memory_bytes)) = (cores, memory_bytes) else {
        return Err(fields.missing("cores", "has to say cores and memory, such as {cores: 8, memory: 32GiB}"));
    };
    if !cores.is_multiple_of(numa) {
        let wanted = format!("a divisor of {cores}, the cores");
        return Err(fields.wrong_value("numa_nodes", &wanted, &numa.into()));
    }
    fields.finish()?;
    let each = cores / numa;
    let node = |number| Node { number, cores: (number * each..(number + 1) * each).collect() };
    let nodes = if numa > 1 { (0..numa).map(node).collect() } else { Vec::new() };
    Ok(CpuDevice { name, cores: (0..cores).collect(), nodes, memory_bytes })
}

fn some_gpus(mut fields: Fields<'_>) -> Result<Vec<Gpu>, FieldError> {
    let count = fields.size("count", 1..=MOST_GPUS)?.unwrap_or(1);
    let name = fields.text("name")?.unwrap_or("a GPU").to_owned();
    let sms = fields.whole("sms", 1..=4096)?;
    let memory_bytes = sizes::bytes(&mut fields, "memory", 1 << 20, 1 << 50)?;
    let numa = fields.size("numa", 0..=63)?;
    let (Some(sms), Some(memory_bytes)) = (sms, memory_bytes) else {
        let problem = "has to say sms and memory, such as {count: 4, sms: 132, memory: 80GiB}";
        return Err(fields.missing("sms", problem));
    };
    fields.finish()?;
    Ok(vec![Gpu { name, sms: sms as u32, memory_bytes, numa, bus: None }; count])
}

/// Links between every two of some GPUs.
fn some_links(mut fields: Fields<'_>, gpus: usize) -> Result<Vec<Joined>, FieldError> {
    let path = fields.path("among");
    let last = (gpus as u64).saturating_sub(1);
    let among: Vec<usize> = match fields.value("among") {
        None => {
            return Err(FieldError::new(
                path,
                Fault::Missing,
                "is missing: `all`, or numbers of GPUs such as [0, 1]",
            ));
        }
        Some(Value::String(all)) if all == "all" => (0..gpus).collect(),
        Some(Value::Array(numbers)) => numbers
            .iter()
            .map(|number| whole(&path, number, 0..=last).map(|number| number as usize))
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(wrong_value(&path, "`all`, or numbers of GPUs such as [0, 1]", other)),
    };
    let names = LinkKind::ALL.map(LinkKind::name);
    let Some(kind) = fields.word("kind", &names)?.and_then(LinkKind::named) else {
        return Err(fields.missing("kind", format!("is missing: {}", names.join(", "))));
    };
    let bytes_per_s = match fields.number("gb_per_s", 0.1..=100_000.0)? {
        Some(gb_per_s) => gb_per_s * 1e9,
        None => kind.usual_bytes_per_s(),
    };
    fields.finish()?;
    let link = Link { kind, bytes_per_s };
    let pairs = among.iter().flat_map(|&a| among.iter().map(move |&b| (a, b)));
    Ok(pairs.filter(|(a, b)| a < b).map(|gpus| Joined { gpus, link }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<Option<Topology>, String> {
        let root = json!({ "topology": value });
        let mut fields = Fields::new("", &root).unwrap();
        topology(&mut fields, Path::new("")).map_err(|error| error.message)
    }

    #[test]
    fn a_machine_is_read_as_it_is_written() {
        let machine = read(&json!({
            "name": "two kinds", "host": {"cores": 8, "memory": "32GiB", "numa_nodes": 2},
            "gpus": [{"count": 2, "name": "big", "sms": 132, "memory": "80GiB", "numa": 0},
                     {"name": "small", "sms": 46, "memory": "24GiB", "numa": 1}],
            "links": [{"among": "all", "kind": "pcie"}, {"among": [0, 1], "kind": "nvlink", "gb_per_s": 300}],
        }));
        let machine = machine.unwrap().unwrap();
        assert_eq!((machine.gpus.len(), machine.gpus[2].memory_bytes), (3, 24 << 30));
        assert_eq!(machine.host.nodes[1].cores, [4, 5, 6, 7]);
        let link = |a, b| machine.link(a, b).map(|link| (link.kind, link.bytes_per_s));
        assert_eq!(link(0, 1), Some((LinkKind::Nvlink, 300e9)));
        assert_eq!(link(0, 2), Some((LinkKind::Pcie, 25e9)));
        assert_eq!(read(&Value::Null), Ok(None));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let host = json!({"cores": 4, "memory": "8GiB"});
        for (value, words) in [
            (json!({}), "`topology.host` is missing"),
            (json!({"host": {"cores": 4}}), "cores and memory"),
            (json!({"host": {"cores": 4, "memory": "8GiB", "numa_nodes": 3}}), "a divisor of 4"),
            (json!({"host": host, "gpus": [{"sms": 132}]}), "`topology.gpus[0].sms`"),
            (json!({"host": host, "gpus": [{"sms": 1, "memory": "1GiB", "count": 65}]}), "1 to 64"),
            (json!({"host": host, "links": [{"kind": "nvlink"}]}), "`topology.links[0].among` is missing"),
            (json!({"host": host, "links": [{"among": "all"}]}), "nvlink, pcie-switch"),
            (json!({"host": host, "links": [{"among": "all", "kind": "nvlinks"}]}), "did you mean `nvlink`"),
            (
                json!({"host": host, "gpus": [{"sms": 1, "memory": "1GiB"}], "links": [{"among": [0, 1], "kind": "pcie"}]}),
                "from 0 to 0",
            ),
            (json!({"host": host, "gpu": []}), "did you mean `gpus`"),
            (json!("nowhere.yaml"), "nowhere.yaml: "),
        ] {
            let refusal = read(&value).unwrap_err();
            assert!(refusal.contains(words), "{value}: {refusal}");
        }
    }
}
