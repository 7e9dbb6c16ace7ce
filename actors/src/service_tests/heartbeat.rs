//! The heartbeat is the dispatcher's own: it comes back from one that works or is idle, and not from one that hangs.

use super::*;
use crate::message::Message;

#[test]
fn a_dispatcher_at_work_and_an_idle_one_answer() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        assert!(service.heartbeat().await, "it is idle");
        let streams = [
            service.submit(submission(1, 60)).await.expect("it is taken"),
            service.submit(submission(2, 60)).await.expect("it is taken"),
        ];
        assert!(service.heartbeat().await, "it works");
        for stream in streams {
            assert_eq!(read(stream).await.1, Some(FinishReason::Length));
        }
        service.stop().await;
    });
}

#[test]
fn a_dispatcher_that_hangs_does_not_answer_until_it_goes_on() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        let (go_on, until) = std::sync::mpsc::channel();
        let hanging = service.dispatcher().send(Message::Hang(until));
        let heartbeat = actix::spawn({
            let service = service.clone();
            async move { service.heartbeat().await }
        });
        // The rest of the service lives on: messages are put into the mailbox, and nobody takes them out.
        assert!(service.ready());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!heartbeat.is_finished(), "nobody can have answered");
        drop(go_on);
        hanging.await.expect("it goes on");
        assert!(heartbeat.await.expect("it ends"));
        service.stop().await;
    });
}

#[test]
fn a_dispatcher_that_has_stopped_says_so() {
    in_system(async {
        let service = Service::start(spec()).await.expect("a service");
        service.clone().stop().await;
        assert!(!service.heartbeat().await);
    });
}
