//! Where a pair goes on one GPU: KV pools from what may be used of its memory, and ways to partition its SMs.

use crate::place::{Limit, pools};
use crate::{KvPools, KvRequest, ModelFootprint, TopologyError};
use serde::Serialize;

/// SMs are partitioned in groups of this many: what compute capability 9 and later gives, and a multiple of what earlier ones give.
const GROUP: u32 = 8;

/// SMs of the draft lane where both lanes have all that there are, at once.
pub const ALL_SMS: u32 = u32::MAX;

/// What the planner must know of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuDevice {
    /// Streaming multiprocessors.
    pub sms: u32,
    /// All of its memory.
    pub memory_bytes: u64,
    /// How much of it may be used, 0 to 1: `device.gpu_memory_utilization`.
    pub utilization: f64,
}

/// Where everything goes on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuPlacement {
    /// The KV pools.
    pub pools: KvPools,
    /// SMs of the draft lane on each partition behind the first, on which both lanes have all of them, in turns. The verify lane has the rest; where the
    /// draft lane has all, both have all at once.
    pub draft_sms: Vec<u32>,
}

impl GpuDevice {
    /// Memory that may be used: weights, workspaces and KV together.
    #[must_use]
    pub fn budget_bytes(&self) -> u64 {
        (self.memory_bytes as f64 * self.utilization) as u64
    }

    /// Checks that the budget is there; `free_bytes` are what the GPU has free before anything of ours is on it.
    ///
    /// # Errors
    /// Says what can be had.
    pub fn check_free(&self, free_bytes: u64) -> Result<(), TopologyError> {
        if free_bytes < self.budget_bytes() {
            let (asked_bytes, gpu_bytes) = (self.budget_bytes(), self.memory_bytes);
            return Err(TopologyError::GpuTaken { asked_bytes, free_bytes, gpu_bytes });
        }
        Ok(())
    }

    /// About an eighth, a quarter and half of the SMs for drafting, in whole groups: 16, 32 and 64 of 132. That both lanes have all at once pays for passes timed alone, and
    /// no service has been seen to gain by it.
    pub(crate) fn default_splits(&self) -> Vec<u32> {
        let share = |parts: u32| (self.sms / parts / GROUP * GROUP).max(GROUP);
        let mut splits = [8, 4, 2].map(share).to_vec();
        splits.retain(|draft| draft + GROUP <= self.sms);
        splits.dedup();
        splits
    }

    /// Splits as they were asked for, [`ALL_SMS`] as the SMs that there are.
    ///
    /// # Errors
    /// Says what can be had.
    pub(crate) fn splits(&self, asked: &[u32]) -> Result<Vec<u32>, TopologyError> {
        let fits = |draft: u32| draft > 0 && draft.is_multiple_of(GROUP) && draft + GROUP <= self.sms;
        let own = |&draft: &u32| if draft == ALL_SMS { self.sms } else { draft };
        let Some(&asked) = asked.iter().find(|draft| **draft != ALL_SMS && !fits(**draft)) else {
            return Ok(asked.iter().map(own).collect());
        };
        let most = self.sms.saturating_sub(GROUP) / GROUP * GROUP;
        let fitting = match most {
            0 => "`all` (both lanes on all SMs), or leave the key out".to_owned(),
            most => format!("multiples of {GROUP} from {GROUP} to {most}, and `all` (both lanes on all SMs)"),
        };
        Err(TopologyError::Split { asked, sms: self.sms, fitting })
    }
}

/// Plans one target, and maybe a draft, on one GPU. `draft_sms` are the splits asked for; `None`: a few sensible ones.
///
/// Without `kv.memory_bytes` the pools have all that the utilization leaves beside weights and workspaces: nobody else wants it, and what
/// running sequences do not need keeps prefixes. With it they hold as much as it says.
///
/// # Errors
/// A refusal with numbers and what would fit: splits that cannot be had, a context no model was made for, weights larger than the
/// memory, or pools in which not even one sequence of `max_context` tokens fits.
pub fn place_on_gpu(
    device: &GpuDevice,
    draft_sms: Option<&[u32]>,
    target: &ModelFootprint,
    draft: Option<&ModelFootprint>,
    kv: &KvRequest,
) -> Result<GpuPlacement, TopologyError> {
    let asked = draft_sms.map(|asked| device.splits(asked)).transpose()?;
    let limit = Limit { memory_bytes: device.budget_bytes(), gpu_bytes: Some(device.memory_bytes) };
    let pools = pools(&limit, target, draft, kv, |left_bytes, _| left_bytes)?;
    let draft_sms = match draft {
        None => Vec::new(),
        Some(_) => asked.unwrap_or_else(|| device.default_splits()),
    };
    Ok(GpuPlacement { pools, draft_sms })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu(sms: u32) -> GpuDevice {
        GpuDevice { sms, memory_bytes: 80 * GIB, utilization: 0.5 }
    }

    fn footprint(weights: u64) -> ModelFootprint {
        ModelFootprint {
            weight_bytes: weights,
            kv_bytes_per_token: 1 << 17,
            max_context: 1 << 20,
            workspace_bytes: GIB,
            copies: 1,
        }
    }

    fn kv(memory_bytes: Option<u64>, max_context: usize) -> KvRequest {
        KvRequest { block_size: 16, memory_bytes, max_running: 1, max_context }
    }

    fn refusal(weights: u64, kv: &KvRequest) -> String {
        place_on_gpu(&gpu(132), None, &footprint(weights), None, kv).unwrap_err().to_string()
    }

    #[test]
    pub(crate) fn default_splits_go_with_the_gpu() {
        for (sms, splits) in
            [(132, &[16, 32, 64][..]), (108, &[8, 24, 48]), (20, &[8]), (16, &[8]), (15, &[]), (0, &[])]
        {
            assert_eq!(gpu(sms).default_splits(), splits, "{sms}");
            assert_eq!(gpu(sms).splits(&[splits, &[ALL_SMS]].concat()).unwrap(), [splits, &[sms]].concat());
        }
    }

    #[test]
    fn splits_that_cannot_be_had_are_refused_by_the_name_of_the_key() {
        for asked in [0, 13, 128, 132, 4096] {
            let refusal = gpu(132).splits(&[16, asked]).unwrap_err().to_string();
            let words = format!("device.partitions has {asked}");
            assert!(
                refusal.contains(&words) && refusal.contains("multiples of 8 from 8 to 120"),
                "{refusal}"
            );
        }
        assert!(gpu(132).splits(&[8, 120]).is_ok());
        let refusal = gpu(12).splits(&[8]).unwrap_err().to_string();
        assert!(refusal.contains("leave the key out"), "{refusal}");
    }

    #[test]
    fn pools_have_what_the_utilization_leaves_beside_weights_and_workspaces() {
        let (target, draft) = (footprint(20 * GIB), footprint(4 * GIB));
        let placed = place_on_gpu(&gpu(132), None, &target, Some(&draft), &kv(None, 4096)).unwrap();
        // 40 GiB of 80, 24 of weights, 2 of workspaces; a block of both models is 4 MiB.
        assert_eq!(placed.pools.kv_bytes, 14 * GIB);
        assert_eq!((placed.pools.target_blocks, placed.pools.draft_blocks), (3584, 3584));
        assert_eq!(placed.draft_sms, [16, 32, 64]);
        let placed =
            place_on_gpu(&gpu(132), Some(&[8]), &target, Some(&draft), &kv(Some(GIB), 4096)).unwrap();
        assert_eq!((placed.pools.kv_bytes, placed.draft_sms), (GIB, vec![8]));
        let alone = place_on_gpu(&gpu(132), None, &target, None, &kv(None, 4096)).unwrap();
        assert_eq!((alone.pools.draft_blocks, alone.draft_sms), (0, vec![]));
    }

    #[test]
    fn refusals_say_what_would_fit() {
        let heavy = refusal(60 * GIB, &kv(None, 4096));
        assert!(heavy.contains("need 61.00 GiB of the 40.00 GiB"), "{heavy}");
        assert!(
            heavy.contains("device.gpu_memory_utilization to at least 0.77, or take a smaller"),
            "{heavy}"
        );
        let hopeless = refusal(90 * GIB, &kv(None, 4096));
        assert!(!hopeless.contains("utilization"), "{hopeless}");
        // 1 GiB is left, and 8192 tokens fit in it.
        let long = refusal(38 * GIB, &kv(None, 16_384));
        assert!(long.contains("max_context to at most 8192") && long.contains("at least 0.52"), "{long}");
        let asked = refusal(38 * GIB, &kv(Some(2 * GIB), 4096));
        assert!(asked.contains("kv.memory") && asked.contains("at most 1.00 GiB"), "{asked}");
        let small = refusal(20 * GIB, &kv(Some(GIB), 16_384));
        assert!(small.contains("set kv.memory to 2147483648") && !small.contains("utilization"), "{small}");
    }

    #[test]
    fn memory_that_somebody_else_has_is_not_planned_with() {
        assert!(gpu(132).check_free(40 * GIB).is_ok());
        let refusal = gpu(132).check_free(30 * GIB).unwrap_err().to_string();
        assert!(refusal.contains("40.00 GiB") && refusal.contains("at most 0.37, or end"), "{refusal}");
        let refusal = gpu(132).check_free(GIB).unwrap_err().to_string();
        assert!(refusal.contains("are free: end what"), "{refusal}");
    }
}
