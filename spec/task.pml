/*
 * task.pml: one task, from claim to close-out, as the code implements it: claims, the ledger's fence, the tools' fence,
 * call records, effects, close-outs.
 *
 * Every GRANT is a coroutine named by its epoch. A worker that lost its task and wakes up is an older coroutine that
 * is scheduled late, so NE epochs are up to NE owners alive at once, each of which may crash or sleep at any step.
 *
 * The network: a message that was sent can be delivered for ever, in any order, any number of times; any answer may be
 * lost. Deliveries that change nothing are left out, which makes the graph acyclic: "no bad final state" is liveness.
 *
 * `code:` names the code that an action models; a test looks the names up. Flags (-D):
 *   NE epochs, NC calls, NM commits an epoch, NA attempts a call, NCAN cancels, NAB abandoned RPCs (then a re-Open under
 *   the same epoch), NX runner deaths, NW withdrawn starts, NY releases, ND resolutions of calls in doubt, NDW=1: one of
 *   them may be wrong, UNSAFE_MASK (bit c: call c must not be repeated), ELSEWHERE_MASK (bit c: another party causes the
 *   effect of call c after a message), PERFECT_FD=1: a runner is declared dead only when it is dead (else at any time)
 * Mutations, each removing one guard:
 *   M_WRITE_FENCE  Commit does not compare the claim     M_OPEN_FENCE   Open reads, the first write raises the fence
 *   M_NUMBER       Commit does not compare its number    M_ADOPT        SEQUENCE_CONFLICT: the worker adopts the number
 *   M_REOPEN       the same claim opens in any state     M_OPEN_ANY     Open of a task that is neither queued nor running
 *   M_TOOL_FENCE   the tools keep no fence               M_CLOSE_EQUAL  a closed fence lets its own epoch in
 *   M_RECORD       every Execute runs                    M_STARTED      the effect needs no STARTED mark
 *   M_START_ANY    the mark compares neither fence nor attempt   M_CALL_OFF  closing leaves ACCEPTED calls as they are
 *   M_BEGUN        a repeat that is called off is recorded as NOT_RUN, whatever the previous attempt did
 *   M_INTENT       Execute before the intent is acknowledged     M_END_UNFENCED  an ending does not close the fence
 *   M_DOUBT        UNSAFE calls are run again            M_REQUEUE_BLIND  RequeueLost does not name the lost claim
 *   M_NO_PROOF     "did not happen" is accepted without a proof or a statement that the runner is gone
 *   M_LATE_PROOF   the same with a proof that exists only after the resolution
 *   M_SAME_ATTEMPT a carried-out resolution gives the call no new attempt number
 *   M_ANY_ATTEMPT  a resolution is applied to another attempt than the one that it names
 *   M_PROOF_ELSEWHERE  a runner that is gone counts as proof that nothing continues elsewhere
 *   M_STOPPED_ELSEWHERE  a call that was sent and is stopped here is recorded as not done
 *   M_LOST_ELSEWHERE  an UNSAFE call whose answer is lost is sent again
 * Properties, asserted where they are broken:
 *   P_ONCE    at most one effect of an UNSAFE call, unless a person stated wrongly that its runner was gone
 *   P_WORD    after a resolution was carried out, the old runner neither marks the call nor records an outcome
 *   P_INTENT  no effect without its committed intent
 *   P_FENCE   no write below an opened epoch             P_FORK    a write's author knows all earlier writes
 *   P_TERM    one end only, with an outcome for each intent        P_ACK  acknowledged writes are in the ledger
 *   P_TRUTH   a call that the ledger records as NOT_RUN never has an effect
 *   P_END     after the end no Execute is accepted and no call is marked STARTED
 *   P_OWNER   a requeue never takes the task from an owner with a live claim
 *   P_LIVE    at rest: ended, or waiting over a call in doubt
 *   P_REACH=n violated if that final state is reachable: the model is not vacuous
 */
#ifndef NE
#define NE 3
#endif
#ifndef NC
#define NC 1
#endif
#ifndef NM
#define NM 5
#endif
#ifndef NA
#define NA 3
#endif
#ifndef NCAN
#define NCAN 1
#endif
#ifndef NAB
#define NAB 1
#endif
#ifndef NX
#define NX 1
#endif
#ifndef NW
#define NW 0
#endif
#ifndef NY
#define NY 0
#endif
#ifndef ND
#define ND 0
#endif
#ifndef NDW
#define NDW 0
#endif
#ifndef UNSAFE_MASK
#define UNSAFE_MASK 255
#endif
#ifndef ELSEWHERE_MASK
#define ELSEWHERE_MASK 0
#endif
#ifndef PERFECT_FD
#define PERFECT_FD 0
#endif
#ifdef P_ALL
#define P_ONCE
#define P_WORD
#define P_INTENT
#define P_FENCE
#define P_FORK
#define P_TERM
#define P_ACK
#define P_TRUTH
#define P_END
#define P_OWNER
#endif

/* code: tenure/domain/states.py TaskState (FAILED stands for every end that is not SUCCEEDED or CANCELLED) */
#define QUEUED    0
#define RUNNING   1
#define WAITING   2
#define SUCCEEDED 3
#define CANCELLED 4
#define FAILED    5
#define TERMINAL(s) ((s) >= SUCCEEDED)
/* code: tenure/domain/tools.py CallState */
#define R_NONE     0
#define R_ACCEPTED 1
#define R_STARTED  2
#define R_FINISHED 3
#define R_NOT_RUN  4
#define R_DOUBT    5
/* a person's resolution of a call in doubt; code: tenure/domain/in_doubt.py Happened DidNotHappen Abandon */
#define W_NONE   0
#define W_SETTLE 1    /* happened, or abandoned */
#define W_AGAIN  2    /* did not happen, and the runner was gone at the time of the resolution */
#define W_EARLY  3    /* did not happen, and it is unknown whether the runner is gone */
/* the contents of a commit */
#define K_INTENT  0   /* an assistant message with its intents: one, or several to run at once */
#define K_OUTCOME 1   /* the outcomes known so far */
#define K_SUCCEED 2
#define K_WAIT    3   /* WAITING_USER over a call in doubt; its intent stays open */
#define K_YIELD   4   /* back to the queue: drained, halted */
#define K_END     5   /* FAILED, an outcome for each open intent in the same commit */
#define K_CANCEL  6   /* CANCELLED, likewise */
/* the state of a grant's coroutine */
#define P0      0
#define CLAIMED 1     /* its key is in etcd; not registered */
#define GRANTED 2     /* registered, the token signed; must Open */
#define THINK   3
#define WAITC   4     /* a commit sent, the answer awaited */
#define CALLS   5     /* intents acknowledged, Executes under way */
#define CLOSED  6     /* tools.Fence(close) answered, the end to be committed */
#define DEAD    7
/* the state of a runner's call attempt */
#define A_NONE   0
#define A_ACCEPT 1    /* accepted, not marked */
#define A_MARK   2    /* marked STARTED, the effect not begun */
#define A_DONE   3    /* the effect has happened, the outcome is not recorded */
#define A_SENT   4    /* the request for an effect elsewhere was sent, the answer is awaited */

byte rev, holder;                       /* etcd: the newest claim's epoch; the epoch in the claim key, 0: none */
bit  gone[NE+1];                        /* a coordinator knows that the claim's key is deleted */
byte st, opened, granted, number, seq;  /* the task's row; code: tenure/domain/admission.py FenceRow */
bit  holds, cancel;                     /* cancel: a pending ending; code: tenure/domain/close_out.py PendingEnding */
byte last_k, intents, done, notrun;
byte app[NE+1];                         /* ghost: which commits of an epoch were applied */
byte tfence; bit closed;                /* tools; code: services/tools/calls/accept_rules.py ToolFenceRow */
byte rec[NC+1], att[NC+1], rep[NC+1];   /* a call's record: state, attempt, the epoch that authorised it */
bit  begun[NC+1];                       /* an abandoned attempt may have had its effect */
byte runner[(NC+1)*(NA+1)];             /* runners, by call and attempt */
byte away[(NC+1)*(NA+1)];               /* requests on their way, or in work elsewhere, even if no runner waits */
byte sent_x[NE+1];                      /* Executes in flight, bit by call */
byte pc[NE+1], view[NE+1], num[NE+1], nm[NE+1], todo[NE+1], got[NE+1], gnot[NE+1], gdoubt[NE+1];
bit  ender[NE+1];                       /* a coordinator's claim, made to end the task */
byte mnum[(NE+1)*NM], mkind[(NE+1)*NM], mmask[(NE+1)*NM], mnot[(NE+1)*NM], mview[(NE+1)*NM];
byte ncall, ncan, nab, nx, nw, ny, nterm, eff[NC+1], seen_open;
byte waits;                             /* the calls in doubt whose resolutions the task waits for */
byte word[NC+1], watt[NC+1];            /* the newest resolution in the ledger, and the attempt that it names */
byte kword[(NE+1)*(NC+1)], kwatt[(NE+1)*(NC+1)]; /* as the owner of an epoch read it */
byte nd, decided[NC+1]; bit mistaken[NC+1];  /* ghosts: the attempt of the last carried-out resolution; a resolution was wrong */

#define BIT(c)    (1 << (c))
#define OPEN      (intents & ~done)
#define ix(e, k)  ((e) * NM + (k))
#define ax(c, a)  ((c) * (NA + 1) + (a))
#define kx(e, c)  ((e) * (NC + 1) + (c))
#define CUR(e)    (nm[e] - 1)
#define UNSAFE(c) ((UNSAFE_MASK >> (c)) & 1)
#define ELSEWHERE(c) ((ELSEWHERE_MASK >> (c)) & 1)
#define LIVE_RUN(c) (att[c] && runner[ax(c, att[c])] != A_NONE)
#if PERFECT_FD
#define SUSPECT(c) (!LIVE_RUN(c))
#else
#define SUSPECT(c) (1)
#endif

/* ---- the ledger's fence --------------------------------------------------------------------------------------- */
#ifdef M_OPEN_ANY
#define OPENABLE (!TERMINAL(st))
#else
#define OPENABLE (st == QUEUED || st == RUNNING)
#endif
#ifdef M_REOPEN
#define AGAIN(e) ((e) == opened && !TERMINAL(st))
#else
#define AGAIN(e) ((e) == opened && holds && st == RUNNING)
#endif
#define MAY_OPEN(e) ((e) == granted && (AGAIN(e) || (OPENABLE && (e) > opened)))
#ifdef M_WRITE_FENCE
#define FENCE_OK(e) (1)
#else
#ifdef M_OPEN_FENCE
#define FENCE_OK(e) ((e) >= opened && (holds || (e) > opened))
#else
#define FENCE_OK(e) ((e) == opened && holds)
#endif
#endif
#ifdef M_NUMBER
#define NUMBER_OK(e, k) (!((app[e] >> (k)) & 1) || 1)
#else
#ifdef M_OPEN_FENCE
#define NUMBER_OK(e, k) (mnum[ix(e, k)] == (e > opened -> 1 : number + 1))
#else
#define NUMBER_OK(e, k) (mnum[ix(e, k)] == number + 1)
#endif
#endif
#define ACCEPTS(e, k) (k < nm[e] && FENCE_OK(e) && st == RUNNING && NUMBER_OK(e, k))
#define REPEATS(e, k) (k < nm[e] && e == opened && mnum[ix(e, k)] == number && last_k == k && ((app[e] >> k) & 1))
#define AWAITS(e, k)  (pc[e] == WAITC && k == CUR(e))

inline drop(e) { pc[e] = DEAD; view[e] = 0; num[e] = 0; todo[e] = 0; got[e] = 0; gnot[e] = 0; gdoubt[e] = 0 }

#ifdef M_REQUEUE_BLIND
#define FORGET_GONE(c) skip
#else
#define FORGET_GONE(c) gone[c] = 0
#endif
/* No write of an older owner can be accepted any more: fewer states, same behaviour. Not with a mutation that accepts it. */
inline forget_older(e) {
#if !defined(M_WRITE_FENCE) && !defined(M_OPEN_FENCE)
  c = 1;
  do :: c < e ->
          if :: pc[c] == WAITC || pc[c] == THINK || pc[c] == GRANTED || pc[c] == CLAIMED -> drop(c) :: else fi;
          do :: nm[c] > 0 -> nm[c]--; mnum[ix(c, nm[c])] = 0; mkind[ix(c, nm[c])] = 0; mmask[ix(c, nm[c])] = 0;
                  mnot[ix(c, nm[c])] = 0; mview[ix(c, nm[c])] = 0 :: else -> break od;
          FORGET_GONE(c); c++ :: else -> break od;
  c = 0
#else
  skip
#endif
}

inline send_commit(e, kd, mask, nots) {
  mnum[ix(e, nm[e])] = num[e]; mkind[ix(e, nm[e])] = kd; mmask[ix(e, nm[e])] = mask; mnot[ix(e, nm[e])] = nots;
  mview[ix(e, nm[e])] = view[e]; nm[e]++; pc[e] = WAITC
}

/* code: services/checkpoint/commit/close_out.py carry_out_ending; tenure/domain/close_out.py follow_up */
inline follow_up() {
  if :: cancel && st != RUNNING && !TERMINAL(st) && OPEN == 0 -> st = CANCELLED; nterm++; waits = 0
     :: cancel && st == WAITING && OPEN != 0 -> st = QUEUED; waits = 0
     :: else fi
}

inline end_as(s) {
  st = s; nterm++;
#ifdef P_TERM
  assert(nterm == 1); assert(OPEN == 0);
#endif
}

/* code: tenure/domain/admission.py decide_commit */
inline apply(e, k) {
#ifdef P_FENCE
  assert(e >= seen_open);
#endif
#ifdef P_FORK
  assert(mview[ix(e, k)] == seq); assert(!((app[e] >> k) & 1));
  if :: mkind[ix(e, k)] == K_INTENT -> assert(!(intents & mmask[ix(e, k)]))
     :: else -> assert(!(mmask[ix(e, k)] & ~OPEN)) fi;
#endif
#ifdef M_OPEN_FENCE
  if :: e > opened -> opened = e; number = 0; holds = 1 :: else fi;
#endif
  app[e] = app[e] | BIT(k); seq++; number++; last_k = k;
  if :: mkind[ix(e, k)] == K_INTENT -> intents = intents | mmask[ix(e, k)]
     :: mkind[ix(e, k)] == K_WAIT -> waits = mmask[ix(e, k)]
     :: else -> done = done | mmask[ix(e, k)]; notrun = notrun | mnot[ix(e, k)] fi;
  if :: mkind[ix(e, k)] == K_SUCCEED -> holds = 0; end_as(SUCCEEDED)
     :: mkind[ix(e, k)] == K_END     -> holds = 0; end_as(FAILED)
     :: mkind[ix(e, k)] == K_CANCEL  -> holds = 0; end_as(CANCELLED)
     :: mkind[ix(e, k)] == K_WAIT    -> holds = 0; st = WAITING; follow_up()
     :: mkind[ix(e, k)] == K_YIELD   -> holds = 0; st = QUEUED; follow_up()
     :: else fi
}

inline acknowledged(e) {             /* the worker reads "OK" */
#ifdef P_ACK
  assert((app[e] >> CUR(e)) & 1);
#endif
  view[e] = mview[ix(e, CUR(e))] + 1; num[e]++;
  if :: mkind[ix(e, CUR(e))] == K_INTENT -> todo[e] = mmask[ix(e, CUR(e))]; pc[e] = CALLS
     :: mkind[ix(e, CUR(e))] == K_OUTCOME -> todo[e] = todo[e] & ~mmask[ix(e, CUR(e))];
          got[e] = got[e] & todo[e]; gnot[e] = gnot[e] & todo[e]; gdoubt[e] = gdoubt[e] & todo[e];
          if :: todo[e] -> pc[e] = CALLS :: else -> pc[e] = THINK fi
     :: else -> drop(e) fi
}

/* code: services/checkpoint/commit/committing.py; a Commit that arrives, however late */
#define DELIVER(k) \
  :: d_step { AWAITS(e, k) && ACCEPTS(e, k) -> apply(e, k); \
       printf("ledger: commit %d of epoch %d accepted and answered (kind %d, calls %d)\n", k, e, mkind[ix(e, k)], mmask[ix(e, k)]); acknowledged(e) } \
  :: d_step { ACCEPTS(e, k) -> apply(e, k); \
       printf("ledger: commit %d of epoch %d accepted, answer lost (kind %d, calls %d)\n", k, e, mkind[ix(e, k)], mmask[ix(e, k)]) } \
  :: d_step { AWAITS(e, k) && REPEATS(e, k) -> printf("ledger: commit %d of epoch %d answered as the first time\n", k, e); acknowledged(e) } \
  :: d_step { AWAITS(e, k) && !REPEATS(e, k) && !(FENCE_OK(e) && st == RUNNING) -> printf("ledger: commit %d of epoch %d: STALE_EPOCH\n", k, e); drop(e) } \
  CONFLICT(k)
/* SEQUENCE_CONFLICT: open and fold again, never adopt a number. code: services/worker/claim_ledger.py */
#ifdef M_ADOPT
#define CONFLICT(k) :: d_step { AWAITS(e, k) && !REPEATS(e, k) && FENCE_OK(e) && st == RUNNING && !NUMBER_OK(e, k) && nm[e] < NM -> \
       num[e] = number + 1; send_commit(e, mkind[ix(e, k)], mmask[ix(e, k)], mnot[ix(e, k)]) }
#else
#define CONFLICT(k) :: d_step { AWAITS(e, k) && !REPEATS(e, k) && FENCE_OK(e) && st == RUNNING && !NUMBER_OK(e, k) -> \
       printf("ledger: commit %d of epoch %d: SEQUENCE_CONFLICT\n", k, e); pc[e] = GRANTED; todo[e] = 0; got[e] = 0; gnot[e] = 0; gdoubt[e] = 0 }
#endif

/* ---- the tools' fence ----------------------------------------------------------------------------------------- */
#ifdef M_TOOL_FENCE
#define TOOL_OK(e) (1)
#else
#ifdef M_CLOSE_EQUAL
#define TOOL_OK(e) ((e) >= tfence)
#else
#define TOOL_OK(e) ((e) > tfence || ((e) == tfence && !closed))
#endif
#endif
inline raise_tools(e) { if :: e > tfence -> tfence = e; closed = 0 :: else fi }

/* The effect of a resolution on a call in doubt. code: tenure/domain/in_doubt.py apply_resolution */
#define DECIDES(c) (rec[c] == R_DOUBT)
#ifdef M_SAME_ATTEMPT
#define NEXT_ATTEMPT(c) if :: DECIDES(c) && att[c] -> skip :: else -> att[c]++ fi
#else
#define NEXT_ATTEMPT(c) att[c]++
#endif
#ifdef M_ANY_ATTEMPT
#define OF_ATTEMPT(e, c) (kword[kx(e, c)] != W_NONE)
#else
#define OF_ATTEMPT(e, c) (kword[kx(e, c)] != W_NONE && kwatt[kx(e, c)] == att[c])
#endif
/* Whether the attempt is certainly over. code: services/tools/sql/queries.sql lock_calls calls_in_doubt */
#ifdef M_PROOF_ELSEWHERE
#define GONE(c) (runner[ax(c, att[c])] == A_NONE)
#else
#define GONE(c) (runner[ax(c, att[c])] == A_NONE && !away[ax(c, att[c])])
#endif
#ifdef M_NO_PROOF
#define EARLY_OK(c) (1)
#else
#ifdef M_LATE_PROOF
#define EARLY_OK(c) GONE(c)
#else
#define EARLY_OK(c) (0)
#endif
#endif
#define SETTLES(e, c)   (rec[c] == R_DOUBT && OF_ATTEMPT(e, c) && kword[kx(e, c)] == W_SETTLE)
#define RUNS_AGAIN(e, c) (rec[c] == R_DOUBT && OF_ATTEMPT(e, c) && (kword[kx(e, c)] == W_AGAIN || (kword[kx(e, c)] == W_EARLY && EARLY_OK(c))))
inline settle(e, c) { decided[c] = att[c]; NEXT_ATTEMPT(c); rec[c] = R_FINISHED; rep[c] = e }

inline hand_over(e, c) {             /* the verdict Run: a runner accepts this attempt */
#ifdef P_END
  assert(!TERMINAL(st));
#endif
  if :: rec[c] == R_STARTED || rec[c] == R_DOUBT -> begun[c] = 1 :: else fi;
  NEXT_ATTEMPT(c); rec[c] = R_ACCEPTED; rep[c] = e; runner[ax(c, att[c])] = A_ACCEPT;
  printf("tools: Execute(epoch %d, call %d) accepted as attempt %d\n", e, c, att[c])
}
inline answer(e, c) {
  if :: (todo[e] & BIT(c)) && pc[e] == CALLS -> got[e] = got[e] | BIT(c);
       if :: rec[c] == R_NOT_RUN -> gnot[e] = gnot[e] | BIT(c) :: rec[c] == R_DOUBT -> gdoubt[e] = gdoubt[e] | BIT(c) :: else fi
     :: else fi
}
#define WANTS(e, c) (pc[e] == CALLS && (todo[e] & BIT(c)) && !(got[e] & BIT(c)))
#define SETTLED(c)  (rec[c] == R_FINISHED || rec[c] == R_NOT_RUN || rec[c] == R_DOUBT)
#define ARRIVES(e, c) ((sent_x[e] & BIT(c)) && TOOL_OK(e))
#ifdef M_DOUBT
#define MAY_RUN_AGAIN(c) (1)
#else
#define MAY_RUN_AGAIN(c) (!UNSAFE(c))
#endif
#ifdef M_RECORD
#define AGAIN_ANYWAY(c) (rec[c] != R_NONE && att[c] < NA && att[c] < 2)
#else
#define AGAIN_ANYWAY(c) (0)
#endif

/* code: services/tools/calls/accept_rules.py admit decide; services/tools/calls/accept.py AcceptBatch; services/tools/sql/queries.sql accept_new_calls (fence and record: one transaction) */
#define EXECUTE(c) \
  :: d_step { ARRIVES(e, c) && (rec[c] == R_NONE || AGAIN_ANYWAY(c)) -> raise_tools(e); hand_over(e, c) } \
  :: d_step { ARRIVES(e, c) && rec[c] == R_ACCEPTED && (e > rep[c] || (WANTS(e, c) && !LIVE_RUN(c))) && att[c] < NA -> raise_tools(e); hand_over(e, c) } \
  :: d_step { ARRIVES(e, c) && rec[c] == R_STARTED && e > rep[c] -> raise_tools(e); rep[c] = e; printf("tools: epoch %d joins call %d\n", e, c) } \
  :: d_step { ARRIVES(e, c) && WANTS(e, c) && rec[c] == R_STARTED && SUSPECT(c) && MAY_RUN_AGAIN(c) && att[c] < NA -> raise_tools(e); hand_over(e, c) } \
  :: d_step { ARRIVES(e, c) && WANTS(e, c) && rec[c] == R_STARTED && SUSPECT(c) && !MAY_RUN_AGAIN(c) -> raise_tools(e); rec[c] = R_DOUBT; rep[c] = e; printf("tools: call %d is in doubt\n", c) } \
  :: d_step { ARRIVES(e, c) && SETTLES(e, c) && att[c] < NA -> raise_tools(e); settle(e, c); printf("tools: a word settles call %d\n", c) } \
  :: d_step { ARRIVES(e, c) && RUNS_AGAIN(e, c) && att[c] < NA -> raise_tools(e); decided[c] = att[c]; hand_over(e, c); printf("tools: a word has call %d run again\n", c) } \
  :: d_step { ARRIVES(e, c) && WANTS(e, c) && SETTLED(c) && !SETTLES(e, c) -> raise_tools(e); answer(e, c); printf("tools: epoch %d is answered call %d from the record (%d)\n", e, c, rec[c]) } \
  :: d_step { (sent_x[e] & BIT(c)) && !TOOL_OK(e) && WANTS(e, c) -> printf("tools: Execute of epoch %d: STALE_EPOCH\n", e); drop(e) } \
  :: d_step { WANTS(e, c) && !(sent_x[e] & BIT(c)) -> sent_x[e] = sent_x[e] | BIT(c); printf("worker %d: sends Execute(call %d)\n", e, c) }

/* The outcomes of open calls, as the closed fence reports them. code: tenure/domain/close_out.py outcomes_of_ended_calls */
#define NEVER_RAN(c) (rec[c] == R_NONE || rec[c] == R_NOT_RUN || rec[c] == R_ACCEPTED)
#ifdef M_BEGUN
#define CALLED_OFF(c) R_NOT_RUN
#else
#define CALLED_OFF(c) (begun[c] -> R_DOUBT : R_NOT_RUN)
#endif
inline read_standing(e) {
  gnot[e] = 0; c = 1;
  do :: c <= NC -> if :: (todo[e] & BIT(c)) && NEVER_RAN(c) -> gnot[e] = gnot[e] | BIT(c) :: else fi; c++ :: else -> break od; c = 0
}
/* code: services/tools/calls/closing.py FenceCloser._raise; services/tools/sql/queries.sql call_off settle_dead */
inline close_fence(e) {
#ifndef M_END_UNFENCED
  raise_tools(e); closed = 1; c = 1;
  do :: c <= NC ->
#ifndef M_CALL_OFF
       if :: rec[c] == R_ACCEPTED -> rec[c] = CALLED_OFF(c) :: else fi;
#endif
       c++ :: else -> break od; c = 0;
#endif
  printf("tools: Fence(close) of epoch %d\n", e)
}

/* the fold keeps the newest resolution of each open call; code: tenure/domain/fold.py ResumePoint */
inline read_words(e) {
  c = 1; do :: c <= NC -> kword[kx(e, c)] = word[c]; kwatt[kx(e, c)] = watt[c]; c++ :: else -> break od; c = 0
}

/* ---- one grant ------------------------------------------------------------------------------------------------ */
proctype Grant(byte e) {
  byte c;
  do
  /* code: services/checkpoint/sql/queries.sql register_grants */
  :: d_step { pc[e] == CLAIMED && e > granted -> granted = e; pc[e] = GRANTED; printf("ledger: epoch %d registered\n", e) }
  :: d_step { pc[e] == CLAIMED && e <= granted -> drop(e) }
  /* code: tenure/domain/admission.py decide_open; services/checkpoint/commit/opening.py open_batch */
  :: d_step { pc[e] == GRANTED && MAY_OPEN(e) ->
#ifndef M_OPEN_FENCE
       if :: !AGAIN(e) -> opened = e; number = 0; seq++; holds = 1 :: else -> holds = 1 fi;
       num[e] = number + 1;
#else
       num[e] = (e == opened -> number + 1 : 1); if :: st == QUEUED -> holds = 0 :: else fi;
#endif
       read_words(e); forget_older(e); st = RUNNING; if :: e > seen_open -> seen_open = e :: else fi;
       view[e] = seq; todo[e] = OPEN; pc[e] = (OPEN -> CALLS : THINK);
       printf("ledger: Open(epoch %d): next commit %d, open calls %d\n", e, num[e], OPEN) }
  :: d_step { pc[e] == GRANTED && !MAY_OPEN(e) -> printf("ledger: Open(epoch %d) refused\n", e); drop(e) }

  /* the model answers with calls, one of the remaining or all at once; code: services/worker/model_step.py */
  :: d_step { pc[e] == THINK && !ender[e] && ncall < NC && nm[e] < NM -> ncall++;
       printf("worker %d: the model wants call %d\n", e, ncall); send_commit(e, K_INTENT, BIT(ncall), 0) }
#if NC > 1
  :: d_step { pc[e] == THINK && !ender[e] && ncall == 0 && nm[e] < NM -> ncall = 2;
       printf("worker %d: the model wants calls 1 and 2 at once\n", e); send_commit(e, K_INTENT, BIT(1) | BIT(2), 0) }
#endif
  :: d_step { pc[e] == THINK && !ender[e] && nm[e] < NM -> printf("worker %d: done\n", e); send_commit(e, K_SUCCEED, 0, 0) }
  /* code: services/worker/supervisor.py */
  :: d_step { (pc[e] == THINK || pc[e] == CALLS) && !ender[e] && nm[e] < NM && e < NE && ny < NY -> ny++; send_commit(e, K_YIELD, 0, 0) }
  :: d_step { (pc[e] == THINK || pc[e] == CALLS || pc[e] == CLOSED) && nm[e] == NM -> drop(e) }   /* the bound is reached */
  DELIVER(0) DELIVER(1)
#if NM > 2
  DELIVER(2)
#endif
#if NM > 3
  DELIVER(3)
#endif
#if NM > 4
  DELIVER(4)
#endif
#if NM > 5
  DELIVER(5)
#endif
#ifdef M_INTENT
  :: d_step { pc[e] == WAITC && mkind[ix(e, CUR(e))] == K_INTENT && !(sent_x[e] & mmask[ix(e, CUR(e))]) -> sent_x[e] = sent_x[e] | mmask[ix(e, CUR(e))] }
#endif
  EXECUTE(1)
#if NC > 1
  EXECUTE(2)
#endif
  /* code: services/worker/tool_step.py; outcomes are committed one by one, or together */
  :: d_step { pc[e] == CALLS && !ender[e] && (got[e] & ~gdoubt[e]) && nm[e] < NM -> send_commit(e, K_OUTCOME, got[e] & ~gdoubt[e], gnot[e]) }
  :: d_step { pc[e] == CALLS && !ender[e] && gdoubt[e] && nm[e] < NM -> send_commit(e, K_WAIT, gdoubt[e], 0) }

  /* an ending: the owner's own (budget, policy, a cancel it heard of) or a coordinator's.
     code: services/worker/transitions.py; services/coordinator/claims/close_out.py CloseOutRunner._close_out */
  :: d_step { (pc[e] == CALLS || pc[e] == THINK) && (ender[e] || cancel || pc[e] == CALLS) && TOOL_OK(e) && nm[e] < NM -> close_fence(e);
       pc[e] = CLOSED; got[e] = 0; gnot[e] = 0; gdoubt[e] = 0 }
  :: d_step { (pc[e] == CALLS || pc[e] == THINK) && ender[e] && !TOOL_OK(e) -> drop(e) }
  /* closing waits for STARTED calls, but not for ever: a call that continues is reported as in doubt */
  :: d_step { pc[e] == CLOSED && nm[e] < NM -> read_standing(e);
       if :: cancel || ender[e] -> send_commit(e, K_CANCEL, todo[e], gnot[e]) :: else -> send_commit(e, K_END, todo[e], gnot[e]) fi }

  /* faults of an owner */
  :: d_step { pc[e] != P0 && pc[e] != DEAD && e < NE -> printf("owner %d: crashes\n", e); drop(e) }
  :: d_step { (pc[e] == WAITC || pc[e] == CALLS) && nab < NAB -> nab++; printf("owner %d: an RPC times out; it opens again\n", e);
       pc[e] = GRANTED; todo[e] = 0; got[e] = 0; gnot[e] = 0; gdoubt[e] = 0 }
  od
}

/* ---- one call at the tools ------------------------------------------------------------------------------------- */
#ifdef M_START_ANY
#define MAY_START(c, a) (rec[c] == R_ACCEPTED || rec[c] == R_NOT_RUN || rec[c] == R_STARTED)
#else
#define MAY_START(c, a) (rec[c] == R_ACCEPTED && att[c] == a && rep[c] == tfence && !closed)
#endif
#define RUNNER(a) \
  /* ACCEPTED -> STARTED, compared with fence and attempt; code: services/tools/sql/queries.sql start_calls */ \
  :: d_step { runner[ax(c, a)] == A_ACCEPT && MAY_START(c, a) -> rec[c] = R_STARTED; runner[ax(c, a)] = A_MARK; \
       printf("tools: call %d attempt %d STARTED\n", c, a); ON_START; DECIDED_RULE(a) } \
  UNMARKED(a) \
  /* the effect, within a second of the mark or never */ \
  :: d_step { runner[ax(c, a)] == A_MARK && !ELSEWHERE(c) -> runner[ax(c, a)] = A_DONE; eff[c]++; printf("*** EFFECT of call %d, number %d\n", c, eff[c]); ON_EFFECT } \
  SENDING(a) \
  /* code: services/tools/sql/queries.sql finish_calls */ \
  :: d_step { runner[ax(c, a)] == A_DONE -> runner[ax(c, a)] = A_NONE; \
       if :: att[c] == a && (rec[c] == R_STARTED || rec[c] == R_DOUBT) -> DECIDED_RULE(a); rec[c] = R_FINISHED; printf("tools: call %d finished\n", c) :: else fi } \
  /* too late: the STARTED mark is withdrawn; code: services/tools/sql/queries.sql withdraw_start */ \
  :: d_step { runner[ax(c, a)] == A_MARK && nw < NW && att[c] < NA -> nw++; runner[ax(c, a)] = A_NONE; \
       if :: att[c] == a && (rec[c] == R_STARTED || rec[c] == R_DOUBT) -> \
              if :: rec[c] == R_DOUBT || closed -> rec[c] = CALLED_OFF(c) :: else -> rec[c] = R_ACCEPTED fi; att[c]++ \
          :: else fi; printf("tools: start of call %d attempt %d withdrawn\n", c, a) } \
  :: d_step { runner[ax(c, a)] != A_NONE && nx < NX -> nx++; runner[ax(c, a)] = A_NONE; printf("tools: runner of call %d attempt %d dies\n", c, a) }
/* An effect elsewhere is another's: it comes, once for each request, while the runner waits, or after its death; or never,
   when the request is lost or refused. The runner waits for the answer until it is lost, or the runner is stopped.
   code: services/tools/sending.py CallDelivery; services/tools/calls/effects.py ToolEffect._stopped */
#define SENDING(a) \
  :: d_step { runner[ax(c, a)] == A_MARK && ELSEWHERE(c) -> runner[ax(c, a)] = A_SENT; away[ax(c, a)]++; \
       printf("tools: call %d attempt %d is sent\n", c, a) } \
  :: d_step { away[ax(c, a)] -> away[ax(c, a)]--; eff[c]++; printf("*** EFFECT of call %d elsewhere, number %d\n", c, eff[c]); ON_EFFECT; \
       if :: runner[ax(c, a)] == A_SENT -> runner[ax(c, a)] = A_DONE :: else fi } \
  :: d_step { away[ax(c, a)] -> away[ax(c, a)]--; printf("elsewhere: nothing comes of call %d attempt %d\n", c, a) } \
  SENT_AGAIN(a) \
  :: d_step { runner[ax(c, a)] == A_SENT -> runner[ax(c, a)] = A_NONE; \
       if :: att[c] == a && (rec[c] == R_STARTED || rec[c] == R_DOUBT) -> DECIDED_RULE(a); rec[c] = GIVEN_UP(c) :: else fi; \
       printf("tools: call %d attempt %d is not waited for any more\n", c, a) }
#ifdef M_LOST_ELSEWHERE
#define SENT_AGAIN(a) :: d_step { runner[ax(c, a)] == A_SENT && away[ax(c, a)] < 2 -> away[ax(c, a)]++ }
#else
#define SENT_AGAIN(a)
#endif
#ifdef M_STOPPED_ELSEWHERE
#define GIVEN_UP(c) R_NOT_RUN
#else
#define GIVEN_UP(c) (UNSAFE(c) -> R_DOUBT : R_FINISHED)
#endif
#ifdef M_STARTED
#define UNMARKED(a) :: d_step { runner[ax(c, a)] == A_ACCEPT -> runner[ax(c, a)] = A_MARK }
#else
#define UNMARKED(a) :: d_step { runner[ax(c, a)] == A_ACCEPT && !MAY_START(c, a) -> runner[ax(c, a)] = A_NONE }
#endif
#ifdef P_END
#define ON_START assert(!TERMINAL(st))
#else
#define ON_START skip
#endif
#define ON_EFFECT effect_rules(c)
#ifdef P_WORD
#define DECIDED_RULE(a) assert(a > decided[c])
#else
#define DECIDED_RULE(a) skip
#endif
inline effect_rules(c) {
#ifdef P_ONCE
  assert(!UNSAFE(c) || eff[c] <= 1 || mistaken[c]);
#endif
#ifdef P_INTENT
  assert(intents & BIT(c));
#endif
#ifdef P_TRUTH
  assert(!(notrun & BIT(c)));
#endif
  skip
}

proctype Call(byte c) {
  do
  RUNNER(1)
#if NA > 1
  RUNNER(2)
#endif
#if NA > 2
  RUNNER(3)
#endif
  /* part of closing: no runner will record an outcome; code: services/tools/sql/queries.sql settle_dead */
  :: d_step { closed && rec[c] == R_STARTED && SUSPECT(c) -> rec[c] = R_DOUBT; printf("tools: call %d of a closed task is in doubt\n", c) }
  od
}

/* ---- etcd, coordinators, people ------------------------------------------------------------------------------- */
#ifdef M_REQUEUE_BLIND
#define LOST(x) (gone[x] && holds && st == RUNNING)
#else
#define LOST(x) (gone[x] && holds && opened == x && st == RUNNING)
#endif
/* code: services/checkpoint/queue/requeue.py requeue_lost */
#define REQUEUE(x) \
  :: d_step { LOST(x) && rev < NE -> OWNER_RULE(x); holds = 0; st = QUEUED; seq++; follow_up(); printf("ledger: the claim of epoch %d is gone, requeued\n", x) }
#ifdef P_OWNER
#define OWNER_RULE(x) assert(opened != holder)
#else
#define OWNER_RULE(x) skip
#endif

/* A person looks, and says what became of a call that the task waits for. A person who says that it did not happen does not lie
   about what is there to be seen; that its runner is gone is proven, or his word, and that may be a mistake.
   code: tenure/domain/in_doubt.py decide_resolution; services/checkpoint/commit/draft.py record_resolution */
#define WORD(c) \
  :: d_step { st == WAITING && (waits & BIT(c)) && nd < ND -> say(c, W_SETTLE); printf("person: call %d is settled\n", c) } \
  :: d_step { st == WAITING && (waits & BIT(c)) && nd < ND && eff[c] == 0 && GONE(c) -> say(c, W_AGAIN); printf("person: call %d did not happen\n", c) } \
  :: d_step { st == WAITING && (waits & BIT(c)) && nd < ND && eff[c] == 0 && !GONE(c) -> say(c, W_EARLY); printf("person: call %d has not happened yet\n", c) } \
  :: d_step { st == WAITING && (waits & BIT(c)) && nd < ND && NDW && eff[c] == 0 && !GONE(c) -> say(c, W_AGAIN); mistaken[c] = 1; printf("person: call %d did not happen, says one who is mistaken\n", c) }
inline say(c, w) {
  nd++; word[c] = w; watt[c] = att[c]; seq++; waits = waits & ~BIT(c);
  if :: waits == 0 -> st = QUEUED; follow_up() :: else fi
}

active proctype World() {
  do
  WORD(1)
#if NC > 1
  WORD(2)
#endif
  /* expiry, revoke, transfer, no progress, release; every delete compares the create_revision */
  :: d_step { holder && rev < NE -> gone[holder] = 1; holder = 0; printf("etcd: the claim key is deleted\n") }
  /* code: services/coordinator/lease_store/claim_keys.py; an offer may be old, so any state can be claimed */
  :: d_step { !holder && rev < NE && !TERMINAL(st) && !cancel && st != WAITING -> rev++; holder = rev; pc[rev] = CLAIMED; printf("etcd: claim, epoch %d for a worker\n", rev) }
  /* code: services/coordinator/claims/close_out.py CloseOutRunner._claim */
  :: d_step { !holder && rev < NE && !TERMINAL(st) && cancel && st != WAITING -> rev++; holder = rev; pc[rev] = CLAIMED; ender[rev] = 1; printf("etcd: claim, epoch %d to end the task\n", rev) }
  REQUEUE(1)
#if NE > 2
  REQUEUE(2)
#endif
#if NE > 3
  REQUEUE(3)
#endif
  /* a person: the write to the ledger is the acknowledgement; code: services/checkpoint/commit/external_entries.py */
  :: d_step { ncan < NCAN && !TERMINAL(st) -> ncan++; cancel = 1; printf("person: cancel\n"); follow_up() }
  od
}

active proctype Quiet() {
end:
  timeout ->
#ifdef P_LIVE
    /* The bound leaves a task that was requeued after its last claim; all other tasks must have ended. */
    assert(TERMINAL(st) || (st == WAITING && !cancel) || (st == QUEUED && rev == NE));
    assert(!TERMINAL(st) || OPEN == 0);
#endif
#ifdef P_REACH
#if P_REACH == 1    /* the third owner finishes a call of the first owner, with one effect */
    assert(!(st == SUCCEEDED && opened == 3 && eff[1] == 1 && (app[1] & 1)));
#elif P_REACH == 2  /* an UNSAFE call in doubt whose effect happened */
    assert(!(st == WAITING && rec[1] == R_DOUBT && eff[1] == 1));
#elif P_REACH == 3  /* cancelled by a coordinator, and the open call certainly never ran */
    assert(!(st == CANCELLED && ender[opened] && (notrun & BIT(1)) && rec[1] == R_NOT_RUN));
#elif P_REACH == 4  /* a repeatable call ran twice, the task succeeded */
    assert(!(st == SUCCEEDED && eff[1] == 2));
#elif P_REACH == 5  /* a start was withdrawn, and the next attempt had the effect */
    assert(!(st == SUCCEEDED && nw == 1 && eff[1] == 1));
#elif P_REACH == 7  /* a person had a call run again that had not happened, and the task succeeded */
    assert(!(st == SUCCEEDED && eff[1] == 1 && decided[1] == 1 && word[1] == W_AGAIN && !mistaken[1]));
#elif P_REACH == 8  /* a late outcome counts more than the resolution */
    assert(!(st == SUCCEEDED && eff[1] == 1 && word[1] == W_AGAIN && !decided[1]));
#elif P_REACH == 10 /* the runner died, and the effect came after that */
    assert(!(st == WAITING && rec[1] == R_DOUBT && eff[1] == 1 && nx == 1 && runner[ax(1, 1)] == A_NONE));
#elif P_REACH == 11 /* a call without an effect elsewhere ran again by a resolution, and the task succeeded */
    assert(!(st == SUCCEEDED && eff[1] == 1 && att[1] == 2 && word[1] == W_AGAIN && !mistaken[1]));
#elif P_REACH == 9  /* a call that was in doubt again had its own resolution */
    assert(!(st == SUCCEEDED && eff[1] == 1 && nd == 2 && decided[1] == 2));
#else               /* two calls at once, their outcomes in two commits */
    assert(!(st == SUCCEEDED && eff[1] == 1 && eff[2] == 1 && nm[1] == 4 && opened == 1));
#endif
#endif
    skip
}

init {
  byte i;
  atomic {
    i = 1; do :: i <= NE -> run Grant(i); i++ :: else -> break od;
    i = 1; do :: i <= NC -> run Call(i); i++ :: else -> break od
  }
}
