/*
 * model_calls.pml: the model calls of one task that the model runner makes: the ledger's attempts and their bills, the
 * runners' fence row, joins, cancels, drains, runners that die, and the reports that correct a bill.
 *
 * Every owner is a coroutine named by its epoch, as in task.pml, and may be scheduled late. A commit is one action here:
 * task.pml has the claims and the commit numbers. A message that was sent can be delivered for ever, to any replica, in
 * any order. A runner is one life of a replica of the model runner; it may die at any step, and may be *declared* dead at
 * any time while it still runs. The last owner and the last runner live.
 *
 * `code:` names the code that an action models; a test looks the names up. Flags (-D):
 *   NE epochs, NA attempts, NR runners, NX deaths of runners, NDR drains of runners, NT calls taken over before they were
 *   sent, NY releases of the task (the worker drains), NCAN cancels, NL steps that take too long, NAB abandoned RPCs (then
 *   a re-Open under the same epoch), NF failures of the provider, DIRECT_MASK (bit e: the owner of epoch e calls the
 *   provider itself), PERFECT_FD=1: a runner is declared dead only when it is dead (else at any time)
 * Mutations, each removing one guard:
 *   M_FENCE_START   Generate that begins a call compares no epoch        M_FENCE_JOIN    Generate that joins compares none
 *   M_FENCE_CANCEL  CancelGeneration compares no epoch   M_SENT_LATE     SENT is written after the request went out
 *   M_JOIN_SENDS    a join sends the request again       M_TAKE          SENT is written by any holder of the row
 *   M_LOST_CAS      LOST is written without comparison   M_TELL_EARLY    a reader has the end before its record
 *   M_OPEN_SETTLES  Open settles an attempt as lost that its caller joins    M_REQUEUE_SETTLES  a requeue settles it
 *   M_DRAIN_CANCELS a worker that drains cancels its call        M_RUNNER_DRAIN  a runner that drains gives up SENT calls
 *   M_CANCEL_ABSENT a cancel of an unknown call leaves no row    M_SWEEP     a row is deleted although a request may come
 *   M_NO_REPORT     the runner reports no usage          M_TOLD_ENOUGH   nor that of a call whose end a reader received
 *   M_REPORT_CLAIM  a report counts only under the claim that made the attempt
 *   M_SUPERSEDED    an attempt below the newest one begins
 *   M_WORKER_REPORT a worker that lost its claim reports what it has heard of a call that goes on
 * Properties, asserted where they are broken:
 *   P_ONCE    the provider is asked at most once per attempt
 *   P_STALE   no owner starts, joins or cancels a call after a later owner did
 *   P_SAME    every reader of a call gets the same end
 *   P_SETTLE  an attempt is settled at most once, and no attempt is open at the end of the task
 *   P_REPEAT  a call that goes on, or whose end is known, is not repeated: only what failed or was lost is
 *   P_OWNER   the task's owner is never told that its attempt is superseded
 *   P_BILL    at rest the bill is what the provider used; an estimate only where a runner was lost, or nothing was sent
 *   P_LIVE    at rest the task has ended
 *   P_REACH=n violated if that final state is reachable: the model is not vacuous
 */
#ifndef NE
#define NE 2
#endif
#ifndef NA
#define NA 2
#endif
#ifndef NR
#define NR 2
#endif
#ifndef NX
#define NX 0
#endif
#ifndef NDR
#define NDR 0
#endif
#ifndef NT
#define NT 1
#endif
#ifndef NY
#define NY 0
#endif
#ifndef NCAN
#define NCAN 0
#endif
#ifndef NL
#define NL 0
#endif
#ifndef NAB
#define NAB 0
#endif
#ifndef NF
#define NF 1
#endif
#ifndef DIRECT_MASK
#define DIRECT_MASK 0
#endif
#ifndef PERFECT_FD
#define PERFECT_FD 0
#endif
#ifdef P_ALL
#define P_ONCE
#define P_STALE
#define P_SAME
#define P_SETTLE
#define P_REPEAT
#define P_OWNER
#define P_BILL
#endif

/* code: tenure/domain/states.py TaskState (FAILED stands for every end that is not SUCCEEDED or CANCELLED) */
#define QUEUED    0
#define RUNNING   1
#define SUCCEEDED 2
#define CANCELLED 3
#define FAILED    4
#define TERMINAL(s) ((s) >= SUCCEEDED)
/* the state of the row of the task's newest call */
#define G_NONE     0
#define G_ACCEPTED 1
#define G_SENT     2
#define G_FINISHED 3
/* the end of a call, as the row keeps it; what the provider used follows from it */
#define X_NONE   0
#define X_ANSWER 1
#define X_FAIL   2    /* a failure of the provider, with a part of the usage */
#define X_INT    3    /* cancelled after it was sent, with a part of the usage */
#define X_NEVER  4    /* cancelled before it was sent */
#define X_LOST   5    /* its runner was declared dead */
#define PART     1
#define FULL     3
#define ESTIMATE 7
#define USAGE(x) ((x) == X_ANSWER -> FULL : ((x) == X_FAIL || (x) == X_INT -> PART : ((x) == X_LOST -> ESTIMATE : 0)))
/* the state of a call in the memory of a runner */
#define M_IDLE   0
#define M_WAIT   1    /* it waits for the rate limit */
#define M_GO     2    /* SENT is recorded, the request is not out */
#define M_ASKED  3
#define M_ENDED  4    /* its end is to be recorded */
#define M_KEPT   5    /* its end is recorded, or its row is another's; its usage may have to be reported */
/* the state of an owner's coroutine */
#define P0      0
#define CLAIMED 1     /* the token is signed; must Open */
#define THINK   2
#define CALL    3     /* the attempt is open, Generate is under way */
#define GOT     4     /* the end is known, to be committed */
#define ENDING  5     /* CancelGeneration is under way */
#define STOPPED 6     /* its answer is known, the end of the task is to be committed */
#define DEAD    7

byte rev, holder, st, opened;           /* the newest claim's epoch, the claim key, the task's row */
bit  gone[NE+1], holds, cancel, answered;
byte natt; bit open_att;                /* attempts, and whether the newest is open */
bit  out[NA+1], lost[NA+1], unjoined[NA+1], reported[NA+1];
byte made[NA+1], bill[NA+1], endk[NA+1];
byte fence, rowa, rows, rowr, rowend;   /* the row of the runners' store: its fence, and the newest call */
byte mem[(NR+1)*(NA+1)], mend[(NR+1)*(NA+1)], begun[NA+1];
bit  up[NR+1], draining[NR+1], stop[NA+1], excused[NA+1];
byte judged[NR+1], jatt[NR+1];          /* whom a runner found dead, in which attempt, before it writes that */
byte sent_g[NE+1], sent_c[NE+1], told[NE+1];   /* requests under way, ends told; bit by attempt */
byte pc[NE+1], got[NE+1];
byte nx, ndr, nt, ny, ncan, nl, nab, nf;
byte nset[NA+1], asked[NA+1], used[NA+1], first[NA+1], seen; bit rlost[NA+1];   /* ghosts */

#define BIT(a)    (1 << (a))
#define mx(r, a)  ((r) * (NA + 1) + (a))
#define JOINS(e)  (!((DIRECT_MASK >> (e)) & 1))
#if PERFECT_FD
#define SUSPECT(r) (!up[r])
#else
#define SUSPECT(r) (1)
#endif

inline drop(e) { pc[e] = DEAD; got[e] = 0 }

/* ---- the ledger ------------------------------------------------------------------------------------------------- */
/* code: tenure/domain/admission.py decide_commit decide_open; task.pml has the rest of the fence */
#define COMMIT_OK(e) ((e) == opened && holds && st == RUNNING)
#define MAY_OPEN(e)  ((e) == rev && (COMMIT_OK(e) || ((st == QUEUED || st == RUNNING) && (e) > opened)))

inline settled(a) {
  nset[a]++; open_att = 0;
#ifdef P_SETTLE
  assert(nset[a] == 1);
#endif
}
/* code: tenure/domain/in_doubt.py settle_lost */
inline settle_lost() {
  lost[natt] = 1; bill[natt] = ESTIMATE; settled(natt); printf("ledger: attempt %d is settled as lost\n", natt)
}
/* the owner's entry: the answer, or the failure */
inline settle(x) {
  endk[natt] = x; bill[natt] = USAGE(x); settled(natt); printf("ledger: attempt %d is settled with end %d\n", natt, x)
}
inline end_as(s) {
  st = s; holds = 0;
  if :: open_att -> settle_lost() :: else fi
}
/* code: services/checkpoint/commit/close_out.py carry_out_ending; tenure/domain/close_out.py follow_up */
inline follow_up() { if :: cancel && st == QUEUED -> end_as(CANCELLED) :: else fi }

/* No write of an older owner counts any more, and one that has nothing to send is without effect: fewer states. */
inline forget_older(e) {
  k = 1; do :: k < e -> if :: pc[k] == CLAIMED || pc[k] == THINK || pc[k] == GOT || pc[k] == STOPPED -> drop(k) :: else fi;
       gone[k] = 0; k++ :: else -> break od; k = 0
}

#ifdef M_OPEN_SETTLES
#define STAYS(e) (0)
#else
#define STAYS(e) (JOINS(e) && out[natt])
#endif
#ifdef P_REPEAT
#define REPEAT_RULE(p) assert(!((p) > 0 && out[p]) || (lost[p] -> unjoined[p] : \
                              endk[p] == X_FAIL || endk[p] == X_LOST || ((endk[p] == X_INT || endk[p] == X_NEVER) && nl)))
#else
#define REPEAT_RULE(p) skip
#endif

proctype Owner(byte e) {
  byte k;
  do
  /* code: services/checkpoint/commit/opening.py open_batch */
  :: d_step { pc[e] == CLAIMED && MAY_OPEN(e) -> opened = e; holds = 1; st = RUNNING; forget_older(e);
       printf("ledger: Open(epoch %d), joins %d, open attempt %d\n", e, JOINS(e), (open_att -> natt : 0));
       if :: open_att && !STAYS(e) -> unjoined[natt] = !JOINS(e); settle_lost() :: else fi;
       if :: open_att -> pc[e] = CALL; sent_g[e] = sent_g[e] | BIT(natt) :: else -> pc[e] = THINK fi }
  :: d_step { pc[e] == CLAIMED && !MAY_OPEN(e) -> drop(e) }

  /* reserve: the attempt is recorded before the call; code: services/worker/model_step.py ModelStep */
  :: d_step { pc[e] == THINK && COMMIT_OK(e) && !answered && !cancel && natt < NA -> REPEAT_RULE(natt); natt++; open_att = 1;
       out[natt] = JOINS(e); made[natt] = e; pc[e] = CALL; if :: JOINS(e) -> sent_g[e] = sent_g[e] | BIT(natt) :: else fi;
       printf("ledger: attempt %d by epoch %d\n", natt, e) }
  :: d_step { pc[e] == THINK && COMMIT_OK(e) && answered -> end_as(SUCCEEDED); drop(e); printf("ledger: SUCCEEDED\n") }
  :: d_step { pc[e] == THINK && COMMIT_OK(e) && !answered && natt == NA -> end_as(FAILED); drop(e); printf("ledger: FAILED\n") }
  :: d_step { pc[e] == THINK && COMMIT_OK(e) && cancel -> end_as(CANCELLED); drop(e); printf("ledger: CANCELLED\n") }
  :: d_step { (pc[e] == THINK || pc[e] == GOT || pc[e] == STOPPED) && !COMMIT_OK(e) -> drop(e) }
  /* the owner commits the end of the call */
  :: d_step { pc[e] == GOT && COMMIT_OK(e) -> answered = (got[e] == X_ANSWER); settle(got[e]); got[e] = 0; pc[e] = THINK }

  /* the direct way: the worker asks the provider itself, and what it has not committed is lost with it */
  :: d_step { pc[e] == CALL && !JOINS(e) -> asked[natt]++; got[e] = X_ANSWER; pc[e] = GOT }
  /* the runner refuses it */
  :: d_step { pc[e] == CALL && JOINS(e) && e < fence -> printf("runner: STALE_EPOCH for epoch %d\n", e); drop(e) }
#ifdef P_OWNER
  :: d_step { pc[e] == CALL && JOINS(e) && COMMIT_OK(e) && rowa > natt -> assert(0) }
#endif

  /* DRAIN: back to the queue, and the call goes on; code: services/worker/supervisor.py; services/worker/transitions.py */
  :: d_step { (pc[e] == THINK || (pc[e] == CALL && JOINS(e))) && COMMIT_OK(e) && e < NE && ny < NY -> ny++; st = QUEUED; holds = 0;
#ifdef M_DRAIN_CANCELS
       if :: pc[e] == CALL -> sent_c[e] = sent_c[e] | BIT(natt) :: else fi;
#endif
       drop(e); printf("ledger: epoch %d gives the task back\n", e); follow_up() }
  /* END and LATE cancel the call, and settle it with what that returns; code: services/worker/interrupts.py Interruption */
  :: d_step { pc[e] == CALL && JOINS(e) && e >= fence && (cancel || nl < NL) -> if :: cancel :: else -> nl++ fi;
       pc[e] = ENDING; sent_c[e] = sent_c[e] | BIT(natt); printf("worker %d: cancels attempt %d\n", e, natt) }
  :: d_step { pc[e] == STOPPED && COMMIT_OK(e) -> settle(got[e]);
       if :: cancel -> end_as(CANCELLED) :: else -> end_as(FAILED) fi; drop(e); printf("ledger: ended by its owner\n") }
  /* no runner answers: it does not wait for ever */
  :: d_step { pc[e] == ENDING && COMMIT_OK(e) -> if :: cancel -> end_as(CANCELLED) :: else -> end_as(FAILED) fi; drop(e);
       printf("ledger: ended by its owner, without the end of the call\n") }
  :: d_step { pc[e] == ENDING && !COMMIT_OK(e) -> drop(e) }

  /* faults of an owner */
  :: d_step { pc[e] != P0 && pc[e] != DEAD && e < NE -> printf("owner %d: crashes\n", e); drop(e) }
  :: d_step { (pc[e] == THINK || pc[e] == CALL || pc[e] == GOT) && nab < NAB -> nab++; pc[e] = CLAIMED; got[e] = 0;
       printf("owner %d: an RPC times out; it opens again\n", e) }
  od
}

/* ---- the runners and their store -------------------------------------------------------------------------------- */
#ifdef M_FENCE_START
#define START_OK(e) (1)
#else
#define START_OK(e) ((e) >= fence)
#endif
#ifdef M_FENCE_JOIN
#define JOIN_OK(e) (1)
#else
#define JOIN_OK(e) ((e) >= fence)
#endif
#ifdef M_FENCE_CANCEL
#define CANCEL_OK(e) (1)
#else
#define CANCEL_OK(e) ((e) >= fence)
#endif
#ifdef M_SUPERSEDED
#define LATER(a) ((a) != rowa)
#else
#define LATER(a) ((a) > rowa)
#endif
inline accepted(e) {
#ifdef P_STALE
  assert(e >= seen);
#endif
  if :: e > seen -> seen = e :: else fi; if :: e > fence -> fence = e :: else fi
}
/* The owner of the new call has committed the end of the call before: it needs no report. A request
   of an earlier call is SUPERSEDED from now on, which changes nothing: it is forgotten. */
inline new_row(e, a) {
  accepted(e); if :: rowa && (told[e] & BIT(rowa)) -> excused[rowa] = 1 :: else fi; rowa = a; rowr = r; rowend = 0;
#ifndef M_SUPERSEDED
  k = 1; do :: k <= NE -> sent_g[k] = sent_g[k] & ~(BIT(a) - 1); sent_c[k] = sent_c[k] & ~(BIT(a) - 1); k++ :: else -> break od; k = 0
#else
  skip
#endif
}
inline tell(e, a, x) {
  told[e] = told[e] | BIT(a);
#ifdef P_SAME
  assert(!first[a] || first[a] == x);
#endif
  first[a] = x; got[e] = x; pc[e] = (pc[e] == CALL -> GOT : STOPPED); printf("runner %d: tells epoch %d end %d of attempt %d\n", r, e, x, a)
}
/* The owner's present attempt, whose end it waits for. */
#define AWAITS(e, a) (natt == a && ((pc[e] == CALL && JOINS(e)) || pc[e] == ENDING) && (sent_g[e] & BIT(a)))
#ifdef M_SENT_LATE
#define AT_ONCE (0)
#else
#define AT_ONCE (1)
#endif

/* Generate: begins the call, at once or after a wait for the rate limit; or joins it; code: services/models/rules.py decide */
#define GENERATE(e, a) \
  :: d_step { (sent_g[e] & BIT(a)) && up[r] && !draining[r] && LATER(a) && START_OK(e) && AT_ONCE -> new_row(e, a); begun[a] = e; rows = G_SENT; \
       mem[mx(r, a)] = M_GO; printf("runner %d: attempt %d of epoch %d SENT\n", r, a, e) } \
  :: d_step { (sent_g[e] & BIT(a)) && up[r] && !draining[r] && LATER(a) && START_OK(e) -> new_row(e, a); begun[a] = e; rows = G_ACCEPTED; \
       mem[mx(r, a)] = M_WAIT; printf("runner %d: attempt %d of epoch %d ACCEPTED\n", r, a, e) } \
  :: d_step { (sent_g[e] & BIT(a)) && up[r] && a == rowa && JOIN_OK(e) && (e > fence || e < seen) -> accepted(e); JOIN_AGAIN(a); \
       printf("runner %d: epoch %d joins attempt %d\n", r, e, a) } \
  :: d_step { (sent_g[e] & BIT(a)) && up[r] && a == rowa && JOIN_OK(e) && rows == G_ACCEPTED && rowr != r && !draining[r] && nt < NT \
         && (SUSPECT(rowr) || draining[rowr]) -> accepted(e); nt++; rowr = r; mem[mx(r, a)] = M_WAIT; printf("runner %d: takes attempt %d over\n", r, a) } \
  :: d_step { (sent_g[e] & BIT(a)) && up[r] && a == rowa && JOIN_OK(e) && rows == G_SENT && rowr != r && SUSPECT(rowr) && !judged[r] -> \
         accepted(e); judged[r] = rowr; jatt[r] = a; printf("runner %d: finds runner %d dead\n", r, rowr) } \
  :: d_step { AWAITS(e, a) && up[r] && a == rowa && JOIN_OK(e) && rows == G_FINISHED -> accepted(e); tell(e, a, rowend) }
#ifdef M_JOIN_SENDS
#define JOIN_AGAIN(a) if :: rows == G_SENT && rowr == r && mem[mx(r, a)] == M_ASKED -> mem[mx(r, a)] = M_GO :: else fi
#else
#define JOIN_AGAIN(a) skip
#endif

/* CancelGeneration; code: services/models/rules.py decide; services/models/servicer.py ModelServicer.CancelGeneration */
#ifdef M_CANCEL_ABSENT
#define CANCEL_UNKNOWN(e, a) accepted(e); if :: pc[e] == ENDING -> got[e] = X_NEVER; pc[e] = STOPPED :: else fi
#else
#define CANCEL_UNKNOWN(e, a) new_row(e, a); rows = G_FINISHED; rowend = X_NEVER
#endif
#define CANCEL(e, a) \
  :: d_step { (sent_c[e] & BIT(a)) && up[r] && a > rowa && CANCEL_OK(e) -> CANCEL_UNKNOWN(e, a); printf("runner %d: attempt %d will never begin\n", r, a) } \
  :: d_step { (sent_c[e] & BIT(a)) && up[r] && a == rowa && CANCEL_OK(e) && rows == G_ACCEPTED -> accepted(e); rows = G_FINISHED; rowend = X_NEVER; \
       printf("runner %d: attempt %d is cancelled before it is sent\n", r, a) } \
  :: d_step { (sent_c[e] & BIT(a)) && up[r] && a == rowa && CANCEL_OK(e) && rows == G_SENT && rowr == r && !stop[a] -> accepted(e); stop[a] = 1; \
       printf("runner %d: attempt %d is to stop, says epoch %d\n", r, a, e) } \
  :: d_step { (sent_c[e] & BIT(a)) && up[r] && a == rowa && CANCEL_OK(e) && rows == G_SENT && rowr != r && SUSPECT(rowr) && !judged[r] -> \
         accepted(e); judged[r] = rowr; jatt[r] = a }

/* LOST, by compare-and-set: the row is locked from the judgement to the write; code: services/models/sql/queries.sql lock_generations write_generations */
#ifdef M_LOST_CAS
#define LOST_OK (rowa == jatt[r])
#else
#define LOST_OK (rowa == jatt[r] && rows == G_SENT && rowr == judged[r])
#endif
/* SENT, by compare-and-set; code: services/models/sql/queries.sql mark_sent */
#ifdef M_TAKE
#define SENT_OK(a) (rowa == a)
#else
#define SENT_OK(a) (rowa == a && rows == G_ACCEPTED && rowr == r)
#endif
#ifdef M_SENT_LATE
#define END_OK(a) (rowa == a && rows != G_FINISHED && rowr == r)
#else
#define END_OK(a) (rowa == a && rows == G_SENT && rowr == r)
#endif
inline ask(a) {
  asked[a]++; mem[mx(r, a)] = M_ASKED; printf("*** the provider is asked for attempt %d, number %d\n", a, asked[a]);
#ifdef P_ONCE
  assert(asked[a] == 1);
#endif
}
inline ended(a, x) { mend[mx(r, a)] = x; mem[mx(r, a)] = M_ENDED; used[a] = USAGE(x); printf("runner %d: attempt %d has end %d\n", r, a, x) }
#define RUN(a) \
  :: d_step { mem[mx(r, a)] == M_WAIT && !draining[r] && SENT_OK(a) && AT_ONCE -> rows = G_SENT; mem[mx(r, a)] = M_GO; printf("runner %d: attempt %d SENT\n", r, a) } \
  SEND_FIRST(a) \
  :: d_step { mem[mx(r, a)] == M_WAIT && (draining[r] || !SENT_OK(a)) -> mem[mx(r, a)] = M_IDLE } \
  :: d_step { mem[mx(r, a)] == M_GO && !stop[a] -> ask(a) } \
  :: d_step { mem[mx(r, a)] == M_GO && stop[a] -> ended(a, X_NEVER) } \
  :: d_step { mem[mx(r, a)] == M_ASKED -> ended(a, X_ANSWER) } \
  :: d_step { mem[mx(r, a)] == M_ASKED && nf < NF -> nf++; ended(a, X_FAIL) } \
  :: d_step { mem[mx(r, a)] == M_ASKED && stop[a] -> ended(a, X_INT) } \
  /* the record of the end comes before its first reader; code: services/models/sql/queries.sql finish_generations */ \
  :: d_step { mem[mx(r, a)] == M_ENDED && END_OK(a) -> rows = G_FINISHED; rowend = mend[mx(r, a)]; mem[mx(r, a)] = M_KEPT; printf("runner %d: the end of attempt %d is recorded\n", r, a) } \
  :: d_step { mem[mx(r, a)] == M_ENDED && !END_OK(a) -> mem[mx(r, a)] = M_KEPT } \
  REPORT(a)
#ifdef M_SENT_LATE
#define SEND_FIRST(a) :: d_step { mem[mx(r, a)] == M_WAIT && !draining[r] && SENT_OK(a) -> ask(a) } \
                      :: d_step { mem[mx(r, a)] == M_ASKED && SENT_OK(a) -> rows = G_SENT }
#else
#define SEND_FIRST(a)
#endif
/* The usage of a call that may have been settled as lost; code: tenure/runtime/usage_reports.py UsageReports; tenure/domain/in_doubt.py decide_report RecordedModelCall.may_have_begun_under */
#ifdef M_REPORT_CLAIM
#define REPORT_OK(a) (begun[a] == made[a])
#else
#define REPORT_OK(a) (1)
#endif
#ifdef M_TOLD_ENOUGH
#define NEEDS_REPORT(a) (!first[a])
#else
#define NEEDS_REPORT(a) (!excused[a])
#endif
#ifdef M_NO_REPORT
#define REPORT(a)
#else
#define REPORT(a) \
  :: d_step { mem[mx(r, a)] == M_KEPT && !NEEDS_REPORT(a) -> mem[mx(r, a)] = M_IDLE; mend[mx(r, a)] = 0 } \
  :: d_step { mem[mx(r, a)] == M_KEPT && NEEDS_REPORT(a) && nset[a] -> \
       if :: lost[a] && !reported[a] && REPORT_OK(a) -> reported[a] = 1; bill[a] = USAGE(mend[mx(r, a)]); printf("ledger: the bill of attempt %d is corrected\n", a) :: else fi; \
       mem[mx(r, a)] = M_IDLE; mend[mx(r, a)] = 0 }
#endif
#ifdef M_TELL_EARLY
#define TELL_EARLY(e, a) :: d_step { AWAITS(e, a) && up[r] && e >= fence && mem[mx(r, a)] == M_ENDED && END_OK(a) -> tell(e, a, mend[mx(r, a)]) }
#else
#define TELL_EARLY(e, a)
#endif
#define REQUESTS(e, a) GENERATE(e, a) CANCEL(e, a) TELL_EARLY(e, a)

inline forget_calls() {
  k = 1; do :: k <= NA -> if :: mem[mx(r, k)] > M_WAIT -> rlost[k] = 1 :: else fi; mem[mx(r, k)] = 0; mend[mx(r, k)] = 0; k++ :: else -> break od; k = 0
}
proctype Runner(byte r) {
  byte k;
  do
  REQUESTS(1, 1)
  REQUESTS(2, 1)
#if NE > 2
  REQUESTS(3, 1)
#endif
  RUN(1)
#if NA > 1
  REQUESTS(1, 2)
  REQUESTS(2, 2)
#if NE > 2
  REQUESTS(3, 2)
#endif
  RUN(2)
#endif
#if NA > 2
  REQUESTS(1, 3)
  REQUESTS(2, 3)
#if NE > 2
  REQUESTS(3, 3)
#endif
  RUN(3)
#endif
  :: d_step { judged[r] -> if :: LOST_OK -> rows = G_FINISHED; rowend = X_LOST; rlost[rowa] = 1; printf("runner %d: attempt %d is LOST\n", r, rowa) :: else fi;
       judged[r] = 0; jatt[r] = 0 }
#ifdef M_SWEEP
  :: d_step { up[r] && rows == G_FINISHED -> rowa = 0; rows = 0; rowr = 0; rowend = 0; fence = 0; seen = 0 }
#endif
  /* faults of a runner; a drain: code: services/models/runs.py Runs.drain; services/models/sql/queries.sql give_up */
  :: d_step { up[r] && r < NR && nx < NX -> nx++; up[r] = 0; judged[r] = 0; jatt[r] = 0; forget_calls(); printf("runner %d: dies\n", r) }
  :: d_step { up[r] && r < NR && ndr < NDR -> ndr++; draining[r] = 1; printf("runner %d: drains\n", r) }
#ifdef M_RUNNER_DRAIN
  :: d_step { draining[r] && rows == G_SENT && rowr == r && rowa && mem[mx(r, rowa)] == M_ASKED -> rows = G_ACCEPTED; mem[mx(r, rowa)] = M_IDLE; rlost[rowa] = 1 }
#endif
  od
}

/* ---- etcd, coordinators, people --------------------------------------------------------------------------------- */
/* code: services/checkpoint/queue/requeue.py requeue_lost */
#ifdef M_REQUEUE_SETTLES
#define REQUEUED if :: open_att -> settle_lost() :: else fi
#else
#define REQUEUED if :: open_att && !out[natt] -> settle_lost() :: else fi
#endif
#define REQUEUE(x) \
  :: d_step { gone[x] && holds && opened == x && st == RUNNING && rev < NE -> holds = 0; st = QUEUED; gone[x] = 0; REQUEUED; \
       printf("ledger: the claim of epoch %d is gone, requeued\n", x); follow_up() }
#ifdef M_WORKER_REPORT
#define WORKER_REPORT(e, a) :: d_step { lost[a] && !reported[a] && pc[e] == DEAD && (sent_g[e] & BIT(a)) && made[a] == e -> reported[a] = 1; bill[a] = PART + 1 }
#endif

active proctype World() {
  do
  :: d_step { holder && rev < NE -> gone[holder] = 1; holder = 0; printf("etcd: the claim key is deleted\n") }
  :: d_step { !holder && rev < NE && !TERMINAL(st) -> rev++; holder = rev; pc[rev] = CLAIMED; printf("etcd: claim, epoch %d\n", rev) }
  REQUEUE(1)
#if NE > 2
  REQUEUE(2)
#endif
#ifdef M_WORKER_REPORT
  WORKER_REPORT(1, 1)
#endif
  :: d_step { ncan < NCAN && !TERMINAL(st) -> ncan++; cancel = 1; printf("person: cancel\n"); follow_up() }
  od
}

#define BILL_RULE(a) assert(!(nset[a] && out[a] && !rlost[a]) || (asked[a] -> bill[a] == used[a] : bill[a] == 0 || bill[a] == ESTIMATE))
active proctype Quiet() {
end:
  timeout ->
#ifdef P_BILL
    BILL_RULE(1);
#if NA > 1
    BILL_RULE(2);
#endif
#endif
#ifdef P_SETTLE
    assert(!TERMINAL(st) || !open_att);
#endif
#ifdef P_LIVE
    /* The bound leaves a task that was requeued after its last claim; all other tasks must have ended. */
    assert(TERMINAL(st) || (st == QUEUED && rev == NE));
#endif
#ifdef P_REACH
#if P_REACH == 1    /* the third owner joins the call of the first one, which the provider was asked for once */
    assert(!(st == SUCCEEDED && opened == 3 && natt == 1 && made[1] == 1 && begun[1] == 1 && asked[1] == 1));
#elif P_REACH == 2  /* cancelled while queued, and the report corrects the bill */
    assert(!(st == CANCELLED && lost[1] && reported[1] && bill[1] == FULL));
#elif P_REACH == 3  /* the call of a dead runner is lost, and its repeat answers */
    assert(!(st == SUCCEEDED && endk[1] == X_LOST && asked[1] == 1 && asked[2] == 1));
#elif P_REACH == 4  /* a call that was not sent is taken over from a runner that drains */
    assert(!(st == SUCCEEDED && nt == 1 && ndr == 1 && natt == 1 && asked[1] == 1));
#elif P_REACH == 5  /* the owner cancels the call that a former owner began, and pays for a part */
    assert(!(st == CANCELLED && opened == 2 && begun[1] == 1 && endk[1] == X_INT && bill[1] == PART));
#elif P_REACH == 6  /* begun under a later claim than the attempt was made under, and corrected by a report */
    assert(!(reported[1] && begun[1] > made[1]));
#else               /* an owner without the runner repeats the call, which a later report bills */
    assert(!(st == SUCCEEDED && lost[1] && reported[1] && !out[2]));
#endif
#endif
    skip
}

init {
  byte i;
  atomic {
    i = 1; do :: i <= NR -> up[i] = 1; run Runner(i); i++ :: else -> break od;
    i = 1; do :: i <= NE -> run Owner(i); i++ :: else -> break od
  }
}
