//! WATCHDOG=1, after the dispatcher has shown that it makes progress: a timer alone would beat for a dispatcher that hangs too.

use std::time::Duration;

use tokio::time;

/// How often the service manager wants a beat: half of its deadline (WATCHDOG_USEC), so that one may be late. `None` if it wants none.
pub fn watchdog_period() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|deadline| !deadline.is_zero()).map(|deadline| deadline / 2)
}

/// Asks for progress every `period` and beats after each answer; ends when there is nobody left to answer (`false`).
pub async fn beat(period: Duration, progress: impl AsyncFn() -> bool, beat: impl Fn()) {
    let mut ticks = time::interval(period);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let mut answer = std::pin::pin!(progress());
        let answered = match time::timeout(period, &mut answer).await {
            Ok(answered) => answered,
            Err(_) => {
                tracing::error!(?period, "the dispatcher does not answer: no beat until it does");
                answer.await
            }
        };
        if !answered {
            tracing::error!("the dispatcher has stopped: no more beats for the service manager");
            return;
        }
        beat();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use actix_web::rt::System;
    use tokio::sync::Semaphore;

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn a_beat_follows_every_answer_and_no_silence() {
        System::new().block_on(async {
            let answers = Semaphore::new(3);
            let beats = Cell::new(0);
            let progress = async || {
                answers.acquire().await.unwrap().forget();
                true
            };
            let beating = beat(SHORT, progress, || beats.set(beats.get() + 1));
            let mut beating = std::pin::pin!(beating);
            // Far more than three periods.
            assert!(time::timeout(100 * SHORT, &mut beating).await.is_err(), "it goes on");
            assert_eq!(beats.get(), 3, "there were three answers");
            answers.add_permits(2);
            assert!(time::timeout(100 * SHORT, &mut beating).await.is_err());
            assert_eq!(beats.get(), 5, "it is back");
        });
    }

    #[test]
    fn nobody_left_to_answer_is_the_end_of_it() {
        System::new().block_on(async {
            let answers = RefCell::new(vec![false, true, true]);
            let beats = Cell::new(0);
            let progress = async || answers.borrow_mut().pop().unwrap();
            beat(SHORT, progress, || beats.set(beats.get() + 1)).await;
            assert_eq!(beats.get(), 2);
        });
    }
}
