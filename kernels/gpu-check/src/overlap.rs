//! Drafting and verifying one after the other, against both at once: on the halves of splits, and on two plain streams.

use std::sync::Arc;

use faser_kernels::cuda::{Gpu, Share, SharePair};

use super::filled::filled;
use super::timed_lanes::{ELEMENT, Load, draft_lane, median_seconds, shape, verify_lane};
use super::{CheckResult, Report, Setting, probes};

/// SMs of the draft lane on each split.
const SPLITS: [u32; 4] = [16, 32, 48, 64];
const BATCHES: [usize; 4] = [1, 8, 32, 64];
/// Speculative length.
const K: usize = 4;

/// A draft plan of four steps and a verify pass of five rows for each sequence, at 512 positions.
///
/// # Errors
/// The GPU cannot be opened or split, or its memory is short.
pub fn overlap(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    let splits = setting.size(&SPLITS[..], &SPLITS[..1]);
    let mut shares = vec![SharePair { draft: Share::whole(&gpu), verify: Share::whole(&gpu) }];
    for &sms in splits {
        shares.push(Share::split(&gpu, sms)?);
    }
    let model = |draft| filled(&gpu, shape(draft, setting.small, 8192), ELEMENT.dtype()).map(Arc::new);
    let (target, draft) = (model(false)?, model(true)?);
    let context = setting.size(512, 20);
    for &sequences in setting.size(&BATCHES[..], &BATCHES[..1]) {
        let load = Load { sequences, rows: K + 1, context };
        let (drafts, verifies) =
            (draft_lane(&draft, &shares, load.sizes())?, verify_lane(&target, &shares, load.sizes())?);
        let (mut draft_steps, mut verify_steps) = (0.., 0..);
        // Which lanes work, on which partition.
        let mut timed = |draft: bool, verify: bool, in_turns: bool, partition: usize| {
            median_seconds(setting.small, || {
                if draft {
                    drafts.begin(load.draft(draft_steps.next().unwrap_or(0), partition, K));
                }
                if in_turns {
                    drafts.wait()?;
                }
                if verify {
                    verifies.begin(load.verify(verify_steps.next().unwrap_or(0), partition));
                    verifies.wait()?;
                }
                if draft && !in_turns { drafts.wait() } else { Ok(()) }
            })
            .map(|seconds| seconds * 1e3)
        };
        let name = |what: &str| format!("batch {sequences}: {what}");
        let alone = [timed(true, false, false, 0)?, timed(false, true, false, 0)?];
        report.timed(name("drafting alone"), alone[0], "ms", None);
        report.timed(name("verifying alone"), alone[1], "ms", None);
        // Nothing that is done at once is done before the longer of both.
        let floor = Some(alone[0].max(alone[1]));
        report.timed(name("one after the other"), timed(true, true, true, 0)?, "ms", floor);
        report.timed(name("at once on two plain streams"), timed(true, true, false, 0)?, "ms", floor);
        for (place, sms) in splits.iter().enumerate() {
            let partition = place + 1;
            let drafting = timed(true, false, false, partition)?;
            let verifying = timed(false, true, false, partition)?;
            let both = timed(true, true, false, partition)?;
            let least = Some(drafting.max(verifying));
            report.timed(name(&format!("drafting alone on {sms} SMs")), drafting, "ms", Some(alone[0]));
            report.timed(
                name(&format!("verifying alone on the rest of {sms}")),
                verifying,
                "ms",
                Some(alone[1]),
            );
            report.timed(name(&format!("at once, drafting on {sms} SMs")), both, "ms", least);
        }
    }
    Ok(())
}
