//! The router: which of several replicas is to have a request. Pure: it is told what each of them has, and puts them in order.
//!
//! A replica's price is the number of requests that it has, from waiting ones to running ones. A cached beginning of the prompt makes it cheaper,
//! in proportion: one that is cached whole by `lead` requests. KV that is short makes it dearer by `lead`. So the longer hit wins as long as
//! the loads differ by less than `lead` times the difference of the hits' shares in the prompt, and beyond that the load does; between replicas
//! with the same hit and enough KV it is the load alone.

/// What the router is told of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaLoad {
    /// It serves.
    pub ready: bool,
    /// Requests it has: running, waiting, and on the way to it.
    pub requests: usize,
    /// Leading tokens of the prompt whose KV it has.
    pub cached_tokens: usize,
    /// Tokens that its free KV blocks have room for.
    pub free_tokens: usize,
    /// Requests it was given so far, by which replicas take turns that are alike otherwise.
    pub routed: u64,
}

/// How far loads may differ for the sake of a prompt that is cached whole, in requests, where `max_running` run at once: a quarter of them.
pub fn lead(max_running: usize) -> usize {
    (max_running / 4).max(1)
}

/// Puts the ready replicas into `order`, the best for a prompt of so many tokens first; the others are left out.
pub fn rank(prompt_tokens: usize, lead: usize, replicas: &[ReplicaLoad], order: &mut Vec<usize>) {
    order.clear();
    order.extend((0..replicas.len()).filter(|&replica| replicas[replica].ready));
    order.sort_by_key(|&replica| {
        let load = &replicas[replica];
        (price(prompt_tokens, lead, load), load.requests, load.routed, replica)
    });
}

/// Requests times tokens of the prompt: whole numbers, so that equals are equal.
pub(crate) fn price(prompt_tokens: usize, lead: usize, load: &ReplicaLoad) -> i128 {
    let prompt = prompt_tokens.max(1);
    let cached = load.cached_tokens.min(prompt);
    let crowded = load.free_tokens < prompt - cached;
    let requests = load.requests as i128 + if crowded { lead as i128 } else { 0 };
    requests * prompt as i128 - lead as i128 * cached as i128
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: usize = 1 << 20;

    fn ranked(prompt: usize, lead: usize, replicas: &[ReplicaLoad]) -> Vec<usize> {
        let mut order = vec![99];
        rank(prompt, lead, replicas, &mut order);
        order
    }

    fn load(requests: usize, cached_tokens: usize) -> ReplicaLoad {
        ReplicaLoad { ready: true, requests, cached_tokens, free_tokens: ROOM, routed: 0 }
    }

    fn any_load() -> impl Strategy<Value = ReplicaLoad> {
        let parts = (any::<bool>(), 0..50usize, 0..200usize, 0..400usize, 0..9u64);
        parts.prop_map(|(ready, requests, cached_tokens, free_tokens, routed)| ReplicaLoad {
            ready,
            requests,
            cached_tokens,
            free_tokens,
            routed,
        })
    }

    proptest! {
        #[test]
        fn exactly_the_ready_ones_are_ranked(
            prompt in 0..300usize, lead in 1..20usize, replicas in prop::collection::vec(any_load(), 0..9),
        ) {
            let mut order = ranked(prompt, lead, &replicas);
            order.sort_unstable();
            let ready: Vec<usize> = (0..replicas.len()).filter(|&i| replicas[i].ready).collect();
            prop_assert_eq!(order, ready);
        }

        #[test]
        fn a_whole_hit_wins_until_the_loads_differ_by_the_lead(
            prompt in 1..300usize, lead in 1..20usize, least in 0..50usize, more in 0..40usize, others in 1..5usize,
        ) {
            let mut replicas = vec![load(least, 0); others];
            replicas.push(load(least + more, prompt));
            let first = ranked(prompt, lead, &replicas)[0];
            prop_assert_eq!(first == others, more < lead, "{} more", more);
        }

        #[test]
        fn a_hit_is_worth_its_share_of_the_prompt(
            prompt in 1..300usize, share in 0..300usize, lead in 1..20usize, more in 1..40usize,
        ) {
            let cached = share.min(prompt);
            let first = ranked(prompt, lead, &[load(0, 0), load(more, cached)])[0];
            prop_assert_eq!(first == 1, more * prompt < lead * cached);
        }

        #[test]
        fn the_longer_hit_wins_at_the_same_load(prompt in 2..300usize, lead in 1..20usize, a in 0..300usize, b in 0..300usize) {
            let (a, b) = (a.min(prompt), b.min(prompt));
            prop_assume!(a != b);
            let first = ranked(prompt, lead, &[load(7, a), load(7, b)])[0];
            prop_assert_eq!(first, usize::from(b > a));
        }

        /// Requests that never end: nobody is passed over for good, whatever is cached where.
        #[test]
        fn nobody_starves(
            lead in 1..10usize, cached in prop::collection::vec(0..101usize, 2..6), free in prop::collection::vec(0..200usize, 6),
        ) {
            let mut replicas: Vec<ReplicaLoad> = cached.iter().zip(free)
                .map(|(&cached_tokens, free_tokens)| ReplicaLoad { cached_tokens, free_tokens, ..load(0, 0) }).collect();
            for _ in 0..50 * replicas.len() {
                let first = ranked(100, lead, &replicas)[0];
                replicas[first].requests += 1;
                replicas[first].routed += 1;
                let (least, most) = replicas.iter().fold((usize::MAX, 0), |(least, most), replica| {
                    (least.min(replica.requests), most.max(replica.requests))
                });
                // A hit and short KV elsewhere: a lead each, and the request that went there last.
                prop_assert!(most - least <= 2 * lead + 1, "{:?}", replicas);
            }
        }
    }

    #[test]
    fn alike_replicas_take_turns() {
        let mut replicas = [load(0, 0); 3];
        let turns: Vec<usize> = (0..6)
            .map(|_| {
                let first = ranked(10, 4, &replicas)[0];
                replicas[first].routed += 1;
                first
            })
            .collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn short_kv_costs_as_much_as_a_whole_hit_brings() {
        let crowded = |requests, cached| ReplicaLoad { free_tokens: 99, ..load(requests, cached) };
        assert_eq!(ranked(100, 4, &[crowded(0, 0), load(3, 0)]), [1, 0]);
        assert_eq!(ranked(100, 4, &[crowded(0, 0), load(5, 0)]), [0, 1]);
        // What is cached needs no room.
        assert_eq!(ranked(100, 4, &[crowded(0, 16), load(0, 0)]), [0, 1]);
        assert_eq!((lead(64), lead(2)), (16, 1));
    }
}
