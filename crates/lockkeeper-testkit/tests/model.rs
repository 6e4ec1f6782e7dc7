use lockkeeper::engine::Mode;
use lockkeeper_testkit::explore::*;
#[test]
fn t() {
    for (turns, clients, flight, resends, age, lease) in [
        (1, 2, 2, 0, 2, 2),
        (1, 2, 3, 0, 2, 2),
        (1, 2, 2, 1, 2, 2),
        (1, 2, 3, 1, 3, 2),
        (1, 2, 2, 1, 3, 3),
        (2, 2, 2, 0, 2, 2),
        (2, 2, 2, 1, 2, 2),
        (1, 3, 2, 0, 2, 2),
        (1, 3, 2, 1, 2, 2),
    ] {
        let mut s = Setup::new(vec![vec![Wish::queue(Mode::Exclusive)]; clients]);
        s.limits.turns = turns;
        s.limits.flight = flight;
        s.limits.resends = resends;
        s.limits.age = age;
        s.lease = lease;
        let t = std::time::Instant::now();
        let r = search(&s, Order::Deep, 3_000_000);
        println!(
            "turns {turns} clients {clients} flight {flight} resends {resends} age {age} lease {lease}: {r} {:?}",
            t.elapsed()
        );
    }
}
#[test]
fn w() {
    let t = std::time::Instant::now();
    let r = walk(1, 3_000_000, |s| s);
    println!("{r} {:?}", t.elapsed());
}
