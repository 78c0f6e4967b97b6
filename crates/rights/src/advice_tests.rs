use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Keeps what it is asked, for the test to answer.
#[derive(Clone, Default)]
struct Asks(Arc<Mutex<Vec<(Question, Answered)>>>);

impl Adviser for Asks {
    fn ask(&self, question: &Question, answered: Answered) {
        self.0.lock().unwrap().push((question.clone(), answered));
    }
}

impl Asks {
    fn answer(&self, answer: Result<bool, String>) {
        let (_, answered) = self.0.lock().unwrap().remove(0);
        answered(answer);
    }
}

fn site(lets_in_without: bool) -> (Asks, Arc<Advised>, Arc<AtomicUsize>) {
    let asks = Asks::default();
    (asks.clone(), Advised::new(Box::new(asks), lets_in_without), Arc::default())
}

fn question(number: u16) -> Question {
    let visitor = Visitor::User("anna".into());
    Question::of(&visitor, &format!("film{number}@540p"), IpAddr::from([192, 0, 2, 1]))
}

fn ask(advised: &Arc<Advised>, number: u16, told: &Arc<AtomicUsize>) {
    let told = Arc::clone(told);
    let tell = move || {
        told.fetch_add(1, Ordering::SeqCst);
    };
    advised.ask(question(number), Box::new(tell));
}

fn later(ns: u64) -> Now {
    let now = Now::read();
    Now { mono: now.mono.plus_ns(ns), ..now }
}

#[test]
fn an_answer_is_for_all_who_wait_and_is_kept_for_its_time() {
    let (asks, advised, told) = site(false);
    for (answer, advice, time) in [
        (Ok(true), Advice::Allow, ADVICE_GIVEN_NS),
        (Ok(false), Advice::Refuse, ADVICE_REFUSED_NS),
        (Err("it is gone".to_owned()), Advice::Unanswered, ADVICE_FAILED_NS),
    ] {
        told.store(0, Ordering::SeqCst);
        let number = time as u16;
        assert_eq!(advised.look(later(0), &question(number)), None);
        (0..3).for_each(|_| ask(&advised, number, &told));
        assert_eq!((asks.0.lock().unwrap().len(), told.load(Ordering::SeqCst)), (1, 0));
        let asked = asks.0.lock().unwrap()[0].0.clone();
        // Whatever was made of a title is that title.
        assert_eq!((asked.title, asked.user.as_deref()), (format!("film{number}"), Some("anna")));
        asks.answer(answer);
        assert_eq!(told.load(Ordering::SeqCst), 3);
        assert_eq!(advised.look(later(0), &question(number)), Some(advice));
        assert_eq!(advised.look(later(time), &question(number)), None);
    }
    let counts = advised.counts();
    assert_eq!((counts.asked, counts.refused, counts.failed), (3, 1, 1));
    assert_eq!(advised.live().waiting, 0);
}

#[test]
fn without_an_answer_the_operator_has_said_what_holds() {
    for (lets_in, advice) in [(true, Advice::Allow), (false, Advice::Unanswered)] {
        let (asks, advised, told) = site(lets_in);
        ask(&advised, 1, &told);
        asks.answer(Err("no".to_owned()));
        assert_eq!((advised.look(later(0), &question(1)), advised.without()), (Some(advice), advice));
    }
}

#[test]
fn not_too_much_is_asked_at_once_and_those_beyond_do_not_wait() {
    let (asks, advised, told) = site(true);
    (0..MAX_ADVICE_ASKED as u16).for_each(|number| ask(&advised, number, &told));
    assert_eq!(told.load(Ordering::SeqCst), 0);
    // One question more is not asked; one that is asked already may be waited for.
    ask(&advised, 9_999, &told);
    assert_eq!((told.load(Ordering::SeqCst), advised.look(later(0), &question(9_999))), (1, None));
    ask(&advised, 0, &told);
    assert_eq!((told.load(Ordering::SeqCst), asks.0.lock().unwrap().len()), (1, MAX_ADVICE_ASKED));
    // Those who wait have a bound of their own.
    while advised.live().waiting < MAX_ADVICE_WAITING {
        ask(&advised, 0, &told);
    }
    ask(&advised, 0, &told);
    assert_eq!(told.load(Ordering::SeqCst), 2);
    (0..MAX_ADVICE_ASKED).for_each(|_| asks.answer(Ok(true)));
    assert_eq!(told.load(Ordering::SeqCst), 2 + MAX_ADVICE_WAITING);
}

#[test]
fn answers_that_are_kept_have_a_bound() {
    let mut live = Live::default();
    for number in 0..MAX_ADVICE_KEPT as u16 + 10 {
        live.keep(question(number), Advice::Allow, Instant(u64::from(number)));
    }
    assert_eq!((live.kept.len(), live.order.len()), (MAX_ADVICE_KEPT, MAX_ADVICE_KEPT));
    assert!(!live.kept.contains_key(&question(9)) && live.kept.contains_key(&question(10)));
}

#[test]
fn a_question_is_of_everything_that_it_tells() {
    let address = IpAddr::from([192, 0, 2, 1]);
    let anybody = Question::of(&Visitor::Anybody, "film", address);
    let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x201]);
    assert_eq!(anybody, Question::of(&Visitor::Anybody, "film", mapped));
    for other in [
        Question::of(&Visitor::User("anna".into()), "film", address),
        Question::of(&Visitor::Anybody, "other", address),
        Question::of(&Visitor::Anybody, "film", IpAddr::from([192, 0, 2, 2])),
        Question { has_link: true, ..anybody.clone() },
    ] {
        assert_ne!(anybody, other);
    }
}
