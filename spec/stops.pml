/*
 * stops.pml: an operator's stop of everything, and its end: the ledger's table of stops and its copy at the tool service, the
 * transactions that may have read either before a stop, the replicas that keep what they last read, the settlement of calls
 * that run, a model runner, and the list of what was in flight.
 *
 * A statement or transaction has two actions: it takes its snapshot, and it commits. Any time may pass between them. Task c has
 * one call, c. A record that says STARTED is a call that began: its request may go out a moment later. A coordinator and the
 * gateways take the ledger's stops to the tool service, in messages that may come late. A gateway may die at any step.
 *
 * `code:` names the code that an action models; a test looks the names up. Flags (-D):
 *   NC tasks with a call each, NR replicas of the tool service, NG gateways that begin the stop, NEND ends of the stop,
 *   NT tries of a settlement, NL lost workers, NM=1: a model call by a model runner
 * Mutations, each removing one guard:
 *   M_BARRIER_LEDGER  a stop does not wait for the ledger's open transactions    M_BARRIER_TOOLS  nor for the tool service's
 *   M_BARRIER_RAISED  only who raised the epoch of the tool service waits for its transactions
 *   M_EPOCH         the statement that begins calls compares no epoch    M_SHARED_VIEW  a transaction decides by what its replica
 *                   last read, which another read may have replaced     M_TRY_VIEW  a try of a settlement compares the epoch only
 *   M_GRANT         grants and reservations do not read the stops        M_OLDER        the tool service takes older stops
 *   M_LIST_FIRST    tasks are listed before the tool service has the stop    M_LIST_HELD    only tasks with a worker are listed
 *   M_READERS       the answer does not wait for model runners           M_NOTED        a model runner counts as told too early
 * Properties:
 *   P_GRANT  after the answer to a stop no grant and no reservation commits until its end
 *   P_ACCEPT nor is a call accepted    P_BEGIN  nor recorded as STARTED    P_TRY   nor does a settlement permit a try
 *   P_SENT   nor does a model runner send a call that waits
 *   P_LIST   the answer lists each call that may still run
 *   P_END    at rest after the end of the stop no call waits, and the tool service has the ledger's stops
 *   P_REACH=n violated if that final state is reachable: the model is not vacuous
 */
#ifndef NC
#define NC 2
#endif
#ifndef NR
#define NR 1
#endif
#ifndef NG
#define NG 1
#endif
#ifndef NEND
#define NEND 1
#endif
#ifndef NT
#define NT 0
#endif
#ifndef NL
#define NL 0
#endif
#ifndef NM
#define NM 0
#endif
#ifdef P_ALL
#define P_GRANT
#define P_ACCEPT
#define P_BEGIN
#define P_TRY
#define P_SENT
#define P_LIST
#define P_END
#endif

/* the task at the ledger */
#define QUEUED   0
#define GRANTING 1    /* the statement of its grant has its snapshot */
#define GRANTED  2
#define HELD     3
/* the call at the tool service */
#define NONE     0    /* not accepted, or cancelled by a stop and to be begun again */
#define IN_TX    1    /* the transaction that accepts it has read the stops */
#define TX_READ  2    /* and its process has the answer */
#define ACCEPTED 3
#define IN_STMT  4    /* the statement that starts it has its snapshot */
#define STARTED  5
#define STANDING 6    /* the settlement has read the epoch of the stops */
#define READING  7    /* and the stops, because the epoch was another one */
#define ENDED    8

#define UNREAD 15
#define NCM (NC + 1)
byte lep, tep; bit lon, ton;                /* the epoch of the ledger's stops, and of the tool service's; whether one is in force */
byte lopen, topen;                          /* open transactions that have not seen the stop; by task, bit 0: the model call */
byte tst[NCM]; bit intent[NCM];             /* the task, and whether its call has no outcome in the ledger yet */
byte rec[NCM], sep[NCM], tries[NCM]; bit son[NCM];     /* the call; what its statement read */
byte vep[NR+1]; bit von[NR+1];              /* the stops as a replica last read them */
byte fep[NR+1]; bit fon[NR+1], fread[NR+1]; /* a read by its duty that has not been taken yet */
byte mrec, mep, noted, qep; bit mon, qon, asking;      /* the model call, the runner's stops, what the ledger knows of them */
byte nl, nend;
bit  law, valid[NG+1], late[NCM];           /* ghosts: a stop was answered and not ended; this gateway's stop is not ended */
bit  again[NCM], unheld;

#define B(c)  (1 << (c))
#define RP(c) (((c) - 1) % NR + 1)
#ifdef M_GRANT
#define SEES_NONE (1)
#else
#define SEES_NONE (!lon)
#endif
#ifdef P_GRANT
#define GRANT_RULE assert(!law)
#else
#define GRANT_RULE skip
#endif
#ifdef P_ACCEPT
#define ACCEPT_RULE assert(!law)
#else
#define ACCEPT_RULE skip
#endif
#ifdef P_BEGIN
#define BEGIN_RULE assert(!law)
#else
#define BEGIN_RULE skip
#endif
#ifdef P_SENT
#define SENT_RULE assert(!law)
#else
#define SENT_RULE skip
#endif
#ifdef P_TRY
#define TRY_RULE(c) assert(!(law && late[c]))
#else
#define TRY_RULE(c) skip
#endif
#ifdef M_EPOCH
#define SAME_EPOCH(c) (1)
#else
#define SAME_EPOCH(c) (tep == vep[RP(c)])
#endif
#ifdef M_SHARED_VIEW
#define TX_COVERED(c) (von[RP(c)])
#else
#define TX_COVERED(c) (son[c])
#endif
#ifdef M_TRY_VIEW
#define TRY_COVERED(c) (0)
#else
#define TRY_COVERED(c) (von[RP(c)])
#endif
inline begins(c) { rec[c] = STARTED; intent[c] = 1; printf("tools: call %d STARTED\n", c); BEGIN_RULE }
inline cancelled(c) { rec[c] = NONE; again[c] = 1; late[c] = 0; sep[c] = 0; son[c] = 0; printf("tools: call %d is cancelled by the stop\n", c) }
inline begins_try(c) { tries[c]++; rec[c] = STARTED; TRY_RULE(c); late[c] = 0; sep[c] = 0; son[c] = 0; printf("tools: call %d, try %d\n", c, tries[c]) }

proctype Task(byte c) {
  do
  /* ---- a grant; code: services/checkpoint/sql/queries.sql register_grants */
  :: d_step { tst[c] == QUEUED && rec[c] != ENDED && SEES_NONE -> tst[c] = GRANTING; lopen = lopen | B(c) }
  :: d_step { tst[c] == GRANTING -> tst[c] = GRANTED; lopen = lopen & ~B(c); printf("ledger: task %d is granted\n", c); GRANT_RULE }
  /* ---- Open is not stopped: the task leaves its worker at its next call; code: services/checkpoint/commit/opening.py */
  :: d_step { tst[c] == GRANTED -> tst[c] = HELD; intent[c] = (rec[c] != ENDED); printf("ledger: task %d is opened\n", c) }
  :: d_step { tst[c] == HELD && nl < NL -> nl++; tst[c] = QUEUED; printf("ledger: the worker of task %d is lost\n", c) }
  /* ---- one statement accepts and starts, or starts; code: services/tools/sql/queries.sql accept_new_calls start_calls; services/tools/calls/accept_new.py accept_new_calls */
  :: d_step { (rec[c] == ACCEPTED || (rec[c] == NONE && tst[c] == HELD)) && !von[RP(c)] && SAME_EPOCH(c) -> rec[c] = IN_STMT; topen = topen | B(c) }
  :: d_step { rec[c] == IN_STMT -> topen = topen & ~B(c); begins(c) }
  /* ---- a transaction reads the stops, locks, decides and writes; code: services/tools/calls/accept.py begin_accepting AcceptBatch.decide */
  :: d_step { rec[c] == NONE && tst[c] == HELD && (vep[RP(c)] != tep || !von[RP(c)]) -> rec[c] = IN_TX; topen = topen | B(c); sep[c] = tep; son[c] = ton }
  :: d_step { rec[c] == IN_TX -> rec[c] = TX_READ; vep[RP(c)] = sep[c]; von[RP(c)] = son[c] }
  :: d_step { rec[c] == TX_READ -> topen = topen & ~B(c);
       if :: TX_COVERED(c) -> rec[c] = NONE :: else -> rec[c] = ACCEPTED; intent[c] = 1; printf("tools: call %d ACCEPTED\n", c); ACCEPT_RULE fi; sep[c] = 0; son[c] = 0 }
  /* ---- the end of the call; its owner records the outcome */
  :: d_step { rec[c] == STARTED -> rec[c] = ENDED; printf("tools: call %d has ended\n", c) }
  :: d_step { rec[c] == ENDED && tst[c] == HELD && intent[c] -> intent[c] = 0 }
#if NT
  /* ---- a settlement asks the record before each try; code: services/tools/sql/queries.sql go_on_settling; services/tools/calls/settling.py Settler._may_begin Settler._read_stops */
  :: d_step { rec[c] == STARTED && tries[c] < NT -> rec[c] = STANDING; sep[c] = tep; late[c] = law }
  :: d_step { rec[c] == STANDING && sep[c] == vep[RP(c)] -> if :: TRY_COVERED(c) -> cancelled(c) :: else -> begins_try(c) fi }
  :: d_step { rec[c] == STANDING && sep[c] != vep[RP(c)] -> rec[c] = READING; sep[c] = tep; son[c] = ton }
  :: d_step { rec[c] == READING -> vep[RP(c)] = sep[c]; von[RP(c)] = son[c]; if :: son[c] -> cancelled(c) :: else -> begins_try(c) fi }
#endif
  /* ---- the duty of its replica; code: services/tools/calls/stops.py StopKeeper._cancel_covered */
  :: d_step { rec[c] == STARTED && von[RP(c)] -> cancelled(c) }
  od
}

/* A read is a statement of its own: no stop waits until its process has the answer; code: services/tools/calls/stops.py StopKeeper.follow StopView.refresh */
proctype Replica(byte r) {
  do
  :: d_step { !fread[r] && (vep[r] != tep || von[r] != ton) -> fread[r] = 1; fep[r] = tep; fon[r] = ton }
  :: d_step { fread[r] -> fread[r] = 0; vep[r] = fep[r]; von[r] = fon[r]; fep[r] = 0; fon[r] = 0; printf("replica %d: epoch %d\n", r, vep[r]) }
  od
}

/* SetStops; code: services/tools/calls/stops.py StopKeeper.take _replace; services/tools/sql/queries.sql raise_stop_epoch */
#ifdef M_OLDER
#define TAKES(e) ((e) != tep)
#else
#define TAKES(e) ((e) > tep)
#endif
inline set_stops(e, o) { if :: TAKES(e) -> tep = e; ton = o; printf("tools: epoch %d, stopped %d\n", e, o) :: else fi }

/* code: services/coordinator/stops.py StopPush.push */
proctype Coordinator() {
  byte e; bit o, going;
  do
  :: d_step { !going && lep != tep -> going = 1; e = lep; o = lon }
  :: d_step { going -> set_stops(e, o); going = 0; e = 0; o = 0 }
  od
}

/* the tasks whose calls are looked up; code: services/checkpoint/sql/queue.sql stopped_tasks */
#ifdef M_LIST_HELD
#define LISTED(c) (tst[c] == HELD)
#else
#define LISTED(c) (tst[c] == HELD || intent[c])
#endif
#if NC > 2
#define TASKS ((LISTED(1) -> B(1) : 0) | (LISTED(2) -> B(2) : 0) | (LISTED(3) -> B(3) : 0))
#elif NC > 1
#define TASKS ((LISTED(1) -> B(1) : 0) | (LISTED(2) -> B(2) : 0))
#else
#define TASKS (LISTED(1) -> B(1) : 0)
#endif
#define RUNS(c) (rec[c] >= STARTED && rec[c] < ENDED)
inline answers(c) {
  if :: RUNS(c) ->
#ifdef P_LIST
       assert(!valid[g] || (tasks & B(c)));
#endif
       if :: (tasks & B(c)) && tst[c] != HELD -> unheld = 1 :: else fi
     :: else fi
}

/* BeginStop; code: services/gateway/stops.py begin_stop take_to_services; services/checkpoint/queue/stops.py begin_stop; tenure/runtime/store/barrier.py earlier_have_ended */
proctype Gateway(byte g) {
  byte left, e, tasks; bit o, raised;
  d_step { lep++; lon = 1; valid[g] = 1; printf("ledger: gateway %d begins the stop, epoch %d\n", g, lep) };
#ifndef M_BARRIER_LEDGER
  d_step { left = lopen };
  (left & lopen) == 0;
#endif
#ifdef M_LIST_FIRST
  d_step { tasks = TASKS };
#endif
  d_step { left = 0; e = lep; o = lon };
  d_step { raised = (e > tep); set_stops(e, o); left = topen; e = 0; o = 0;
#ifdef M_BARRIER_RAISED
    if :: !raised -> left = 0 :: else fi;
#endif
#ifdef M_BARRIER_TOOLS
    left = 0;
#endif
    raised = 0 };
  (left & topen) == 0;
#if NM && !defined(M_READERS)
  noted >= lep;   /* code: services/checkpoint/sql/queue.sql late_stop_readers */
#endif
#ifndef M_LIST_FIRST
  d_step { left = 0; tasks = TASKS };
#endif
  d_step { answers(1);
#if NC > 1
    answers(2);
#endif
#if NC > 2
    answers(3);
#endif
    if :: valid[g] -> law = 1 :: else fi; left = 0; tasks = 0; printf("gateway %d: the answer\n", g) }
}

/* EndStop; code: services/checkpoint/queue/stops.py end_stop */
active proctype Operator() {
  do
  :: d_step { law && nend < NEND -> nend++; lep++; lon = 0; law = 0; valid[1] = 0;
#if NG > 1
       valid[2] = 0;
#endif
       late[1] = 0;
#if NC > 1
       late[2] = 0;
#endif
#if NC > 2
       late[3] = 0;
#endif
       printf("ledger: the stop is ended, epoch %d\n", lep) }
  od
}

#if NM
/* code: services/models/stops.py LedgerStops.read; services/checkpoint/queue/stops.py list_stops; services/models/runs.py Runs._call Runs._stop_unsent */
active proctype ModelRunner() {
  do
  :: d_step { mrec == 0 && SEES_NONE -> mrec = 1; lopen = lopen | 1 }
  :: d_step { mrec == 1 -> mrec = 2; lopen = lopen & ~1; printf("ledger: tokens are reserved\n"); GRANT_RULE }
  :: d_step { mrec == 2 && !mon -> mrec = 3; printf("*** the model call is sent\n"); SENT_RULE }
  :: d_step { mrec == 2 && mon -> mrec = 0; printf("model runner: the call is not sent\n") }
#ifdef M_NOTED
  :: d_step { !asking && (mep != lep || noted != mep) -> asking = 1; noted = lep; qep = lep; qon = lon }
#else
  :: d_step { !asking && (mep != lep || noted != mep) -> asking = 1; noted = mep; qep = lep; qon = lon }
#endif
  :: d_step { asking -> asking = 0; mep = qep; mon = qon; qep = 0; qon = 0; printf("model runner: epoch %d\n", mep) }
  od
}
#endif

active proctype Quiet() {
end:
  timeout ->
#ifdef P_END
    assert(tep == lep && ton == lon);
    assert(lon || rec[1] == ENDED || (tst[1] == QUEUED && nl == NL));
#endif
#ifdef P_REACH
#if P_REACH == 1    /* a call that the stop cancelled is begun again after its end */
    assert(!(nend && !lon && again[1] && rec[1] == ENDED));
#elif P_REACH == 2  /* the answer lists a running call of a task without a worker */
    assert(!unheld);
#elif P_REACH == 3  /* a reserved call is sent after the end of the stop */
    assert(!(nend && mrec == 3 && rec[1] == ENDED && rec[2] == ENDED));
#else               /* two gateways have answered the same stop, and a second one after its end */
    assert(!(lep == 3 && law));
#endif
#endif
    skip
}

init {
  byte k;
  atomic {
    k = 1; do :: k <= NR -> vep[k] = UNREAD; run Replica(k); k++ :: else -> break od;
    k = 1; do :: k <= NC -> run Task(k); k++ :: else -> break od;
    k = 1; do :: k <= NG -> run Gateway(k); k++ :: else -> break od;
    run Coordinator()
  }
}
