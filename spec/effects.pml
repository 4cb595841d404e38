/*
 * effects.pml: one effect key: calls that plan the same effect, the row that gives the key to one of them, retries with the
 * same idempotency key, settlement, checks, pruned tasks, and another system (the bank) that may act late.
 *
 * A call is a coroutine; its accept, its outcome and its settlement are transactions of the tool service. NT: how often one
 * call may be sent. A request that was sent may reach the bank at any later time, once. Any answer of the bank may be lost.
 * A runner may be declared dead while it still runs. task.pml has fences, intents and resolutions, which are left out here.
 *
 * `code:` names the code that an action models; a test looks the names up. Flags (-D):
 *   NC calls, NT requests of one call, UNSAFE=1: the tool is UNSAFE (else KEYED), NREF refusals of the bank,
 *   NP prunings of a task, NU undos, CHECK=1: the tool declares check_with, ASK=1: a person decides about a repeat
 * Mutations, each removing one guard:
 *   M_UNIQUE        two calls may have the key at the same time
 *   M_NEW_KEY       a call after one of unknown end gets a new idempotency key
 *   M_UNSAFE_AGAIN  an UNSAFE call follows one of unknown end
 *   M_STICKY        a proof of a later call counts although an earlier one may have had the effect
 *   M_BEGUN         a proof counts although an earlier attempt of the call had begun
 *   M_CONCLUDED     the end of an attempt that cannot be sent is a proof although an earlier attempt had begun
 *   M_SETTLED_PROOF a proof counts although an earlier request of the settlement was sent
 *   M_SAME_KEY      a call after a proof keeps the idempotency key
 *   M_CHECK_PROOF   a check that finds nothing is a proof
 *   M_FORGET        a pruned task takes the key with it
 *   M_UNDO_FAILED   a compensation that failed frees the key
 *   M_UNDO_KEY      a call after an undo keeps the idempotency key
 *   M_PERMIT_ANY    a person's permission of a repeat holds for each later call
 * Properties:
 *   P_ONCE   the effect happens at most once, and again only when it is undone or a person permits a repeat
 *   P_TRUE   a call succeeds, or is answered ALREADY_HAPPENED, only while the effect stands
 *   P_FRESH  a call that begins after a proof has a key that the bank has not refused
 *   P_END    at rest no call waits
 *   P_REACH=n violated if that final state is reachable: the model is not vacuous
 */
#ifndef NC
#define NC 2
#endif
#ifndef NT
#define NT 2
#endif
#ifndef UNSAFE
#define UNSAFE 0
#endif
#ifndef NREF
#define NREF 2
#endif
#ifndef NP
#define NP 0
#endif
#ifndef NU
#define NU 0
#endif
#ifndef CHECK
#define CHECK 0
#endif
#ifndef ASK
#define ASK 0
#endif
#ifdef P_ALL
#define P_ONCE
#define P_TRUE
#define P_FRESH
#define P_END
#endif

/* the record of a call; code: tenure/domain/tools.py CallState; what it says: tenure/domain/repeated_effects.py EffectFact fact_of_call */
#define R_NEW      0    /* not accepted yet, or it waits for the call that has the key */
#define R_RUNNING  1
#define R_HAPPENED 2
#define R_UNKNOWN  3    /* an outcome without proof, or in doubt */
#define R_NONE     4    /* an outcome that proves that nothing happened */
#define R_NOT_MADE 5    /* answered, refused: this call does nothing */
#define R_PRUNED   6
#define R_ASKED    7    /* not run: a person decides whether the effect happens again */
/* the bank, by idempotency key */
#define B_UNSEEN  0
#define B_DONE    1
#define B_REFUSED 2     /* the bank recorded its refusal: the same key gets it again */

#define NK (NC + 2)                     /* idempotency keys: the rounds of the effect key */
byte holder, round, kept; bit unclear;  /* the row of the effect; kept: what is known of a pruned holder */
bit  undone;                            /* the effect of the holder is undone */
byte rec[NC+1], att[NC+1], key[NC+1];   /* by call: the record, its attempt or try, its idempotency key */
bit  begun[NC+1];                       /* an earlier attempt or try of this call was sent */
byte way[NC*NT+1];                      /* requests on their way to the bank: the idempotency key + 1 */
byte reply[NC*NT+1];                    /* its answers on their way back */
byte bank[NK];
byte effects, nref, np, nu, permitted;

#define mx(c, n) (((c) - 1) * NT + (n))

#ifdef M_STICKY
#define KNOWN(f) (f)
#else
#define KNOWN(f) ((f) == R_NONE && unclear -> R_UNKNOWN : (f))
#endif
#define FACT (undone -> R_NONE : KNOWN((kept -> kept : rec[holder])))
#ifdef M_UNSAFE_AGAIN
#define MAY_REPEAT (1)
#else
#define MAY_REPEAT (!UNSAFE)
#endif
#ifdef M_PERMIT_ANY
#define MAY_ANY (permitted)
#else
#define MAY_ANY (0)
#endif
#if ASK
#define NOT_AGAIN(c) rec[c] = R_ASKED; printf("tools: a person is asked about call %d\n", c)
#else
#define NOT_AGAIN(c) not_made(c)
#endif
#ifdef P_TRUE
#define TRUE_RULE assert(effects)
#else
#define TRUE_RULE skip
#endif
#ifdef M_BEGUN
#define PROVES(c) (1)
#else
#define PROVES(c) (!begun[c])
#endif
#ifdef M_CONCLUDED
#define ENDED_UNSENT(c) R_NONE
#else
#define ENDED_UNSENT(c) (PROVES(c) -> R_NONE : R_UNKNOWN)
#endif
#ifdef M_SETTLED_PROOF
#define SENT_BEFORE(c) skip
#else
#define SENT_BEFORE(c) begun[c] = 1
#endif

/* code: services/tools/calls/effect_keys.py _EffectRow.take */
inline take(c, is_new) {
  if :: is_new -> unclear = 0;
#if defined(M_SAME_KEY)
#elif defined(M_UNDO_KEY)
        round = (undone -> round : round + 1);
#else
        round++;
#endif
#ifdef P_FRESH
        assert(bank[round] != B_REFUSED);
#endif
     :: else -> unclear = 1;
#ifdef M_NEW_KEY
        round++
#endif
  fi;
  holder = c; kept = 0; undone = 0; run_it(c)
}
inline run_it(c) { key[c] = round; rec[c] = R_RUNNING; att[c]++; printf("tools: call %d runs, request %d, key %d\n", c, att[c], round) }
inline not_made(c) { rec[c] = R_NOT_MADE; printf("tools: call %d is not made\n", c) }
/* the outcome of the call's newest request */
inline record(c, r) { rec[c] = r; printf("tools: call %d ends as %d\n", c, r) }

/* A frozen runner sends its request when it wakes. */
inline late(c) { if :: !way[mx(c, att[c])] && !reply[mx(c, att[c])] -> way[mx(c, att[c])] = key[c] + 1 :: else fi }
inline run_again(c) { att[c]++; printf("tools: call %d again, request %d, key %d\n", c, att[c], key[c]) }

proctype Call(byte c) {
  do
  /* ---- accept: the row of the effect is locked; code: services/tools/calls/effect_keys.py once_each _decide; tenure/domain/repeated_effects.py decide_repeat */
  :: d_step { rec[c] == R_NEW && !holder -> holder = c; run_it(c) }
  :: d_step { rec[c] == R_NEW && holder && FACT == R_NONE && round < NK - 1 -> take(c, 1) }
  :: d_step { rec[c] == R_NEW && holder && FACT == R_UNKNOWN && MAY_REPEAT -> take(c, 0) }
  :: d_step { rec[c] == R_NEW && holder && FACT == R_UNKNOWN && !MAY_REPEAT && !MAY_ANY -> NOT_AGAIN(c) }
  :: d_step { rec[c] == R_NEW && holder && FACT == R_HAPPENED && !MAY_ANY -> TRUE_RULE; NOT_AGAIN(c) }
#if ASK
  /* ---- a person forbids or permits the repeat of a call; code: services/tools/calls/effect_keys.py _is_permitted */
  :: d_step { rec[c] == R_ASKED -> not_made(c) }
  :: d_step { rec[c] == R_ASKED && FACT != R_RUNNING && !permitted && round < NK - 1 -> permitted++; printf("person: call %d may repeat the effect\n", c); take(c, 1) }
#endif
#ifdef M_PERMIT_ANY
  :: d_step { rec[c] == R_NEW && holder && FACT == R_HAPPENED && permitted && round < NK - 1 -> take(c, 1) }
#endif
#ifdef M_UNIQUE
  :: d_step { rec[c] == R_NEW && holder && FACT == R_RUNNING -> run_it(c) }
#endif
  /* ---- the runner sends the request, or learns before that it cannot: its tool is gone, or the bank cannot be reached;
     code: services/tools/calls/accept_rules.py _concluded; services/tools/tool.py NothingDone */
  :: d_step { rec[c] == R_RUNNING && !way[mx(c, att[c])] && !reply[mx(c, att[c])] -> way[mx(c, att[c])] = key[c] + 1; printf("call %d: request %d is sent\n", c, att[c]) }
  :: d_step { rec[c] == R_RUNNING && !way[mx(c, att[c])] && !reply[mx(c, att[c])] -> record(c, ENDED_UNSENT(c)) }
  /* ---- its answer; code: services/tools/calls/effects.py ToolEffect; tenure/domain/repeated_effects.py fact_of_call */
  :: d_step { rec[c] == R_RUNNING && reply[mx(c, att[c])] == B_DONE -> TRUE_RULE; record(c, R_HAPPENED) }
  :: d_step { rec[c] == R_RUNNING && reply[mx(c, att[c])] == B_REFUSED && PROVES(c) -> record(c, R_NONE) }
  :: d_step { rec[c] == R_RUNNING && reply[mx(c, att[c])] == B_REFUSED && !PROVES(c) -> record(c, R_UNKNOWN) }
  /* ---- no answer in time: settled by a repeat with the same key; code: services/tools/calls/settling.py Settler._repeat */
  :: d_step { rec[c] == R_RUNNING && way[mx(c, att[c])] && !UNSAFE && att[c] < NT -> SENT_BEFORE(c); run_again(c) }
#if CHECK
  /* by a check; code: services/tools/calls/settling.py Settler._check; tenure/domain/settlement.py outcome_of_finding */
  :: d_step { rec[c] == R_RUNNING && way[mx(c, att[c])] && bank[key[c]] == B_DONE && effects -> record(c, R_HAPPENED) }
#ifdef M_CHECK_PROOF
  :: d_step { rec[c] == R_RUNNING && way[mx(c, att[c])] && !effects -> record(c, R_NONE) }
#endif
#endif
  /* or given up: in doubt, or an outcome without proof; code: services/tools/calls/settling.py _given_up */
  :: d_step { rec[c] == R_RUNNING && way[mx(c, att[c])] -> record(c, R_UNKNOWN) }
  /* ---- its runner is declared dead, whatever it has done: another attempt; code: services/tools/calls/accept_rules.py _may_have_begun */
  :: d_step { rec[c] == R_RUNNING && !UNSAFE && att[c] < NT -> begun[c] = 1; late(c); run_again(c) }
  :: d_step { rec[c] == R_RUNNING -> late(c); record(c, R_UNKNOWN) }
  /* ---- an undo, whose compensation succeeds or fails; code: services/tools/calls/effect_keys.py undone_by free_undone_effects */
  :: d_step { nu < NU && holder == c && !undone && (kept == R_HAPPENED || rec[c] == R_HAPPENED) -> nu++; effects--; undone = 1; printf("the effect of call %d is undone\n", c) }
#ifdef M_UNDO_FAILED
  :: d_step { nu < NU && holder == c && !undone && (kept == R_HAPPENED || rec[c] == R_HAPPENED) -> nu++; undone = 1 }
#endif
  /* ---- retention; code: services/tools/calls/effect_keys.py forget_effects */
  :: d_step { np < NP && rec[c] >= R_HAPPENED && rec[c] < R_PRUNED -> np++; printf("call %d is pruned with its task\n", c);
#ifdef M_FORGET
       if :: holder == c -> holder = 0; kept = 0; round = 0 :: else fi;
#else
       if :: holder == c -> kept = rec[c] :: else fi;
#endif
       rec[c] = R_PRUNED }
  od
}
/* The bank: an idempotency key makes one effect; of an UNSAFE tool it looks at none. A refusal may be recorded. */
#define REQUEST(m) \
  :: d_step { way[m] && (UNSAFE || bank[way[m]-1] == B_UNSEEN) -> bank[way[m]-1] = B_DONE; effects++; answered(m, B_DONE); \
       printf("*** the effect, number %d\n", effects); ONCE_RULE } \
  :: d_step { way[m] && !UNSAFE && bank[way[m]-1] == B_DONE -> answered(m, B_DONE) } \
  :: d_step { way[m] && !UNSAFE && bank[way[m]-1] == B_REFUSED -> answered(m, B_REFUSED) } \
  :: d_step { way[m] && bank[way[m]-1] == B_UNSEEN && nref < NREF -> nref++; answered(m, B_REFUSED); printf("bank: refused\n") } \
  :: d_step { way[m] && !UNSAFE && bank[way[m]-1] == B_UNSEEN && nref < NREF -> nref++; bank[way[m]-1] = B_REFUSED; answered(m, B_REFUSED); printf("bank: refused, and recorded\n") }
inline answered(m, r) { way[m] = 0; reply[m] = r }
#ifdef P_ONCE
#define ONCE_RULE assert(effects <= 1 + permitted)
#else
#define ONCE_RULE skip
#endif

active proctype Bank() {
  do
  REQUEST(1)
  REQUEST(2)
#if NC * NT > 2
  REQUEST(3)
  REQUEST(4)
#endif
#if NC * NT > 4
  REQUEST(5)
  REQUEST(6)
#endif
  od
}

active proctype Quiet() {
end:
  timeout ->
#ifdef P_END
    assert(rec[1] >= R_HAPPENED && rec[2] >= R_HAPPENED);
#endif
#ifdef P_REACH
#if P_REACH == 1    /* a second call has the effect after a proof that the first one had not, under a new key */
    assert(!(rec[1] == R_NONE && rec[2] == R_HAPPENED && key[2] == 1));
#elif P_REACH == 2  /* the bank acts on the first call after its end, and recognises the second one */
    assert(!(rec[1] == R_UNKNOWN && rec[2] == R_HAPPENED && key[2] == 0 && effects == 1));
#elif P_REACH == 3  /* what a pruned task did is known */
    assert(!(rec[1] == R_PRUNED && rec[2] == R_NOT_MADE && effects == 1));
#elif P_REACH == 6  /* a person permits a repeat, and the effect happens twice */
    assert(!(permitted && rec[1] == R_HAPPENED && rec[2] == R_HAPPENED && effects == 2));
#elif P_REACH == 5  /* a second call has the effect after an undo, under a new key */
    assert(!(nu && rec[1] == R_HAPPENED && rec[2] == R_HAPPENED && key[2] == 1 && effects == 1));
#else               /* an UNSAFE call without an answer blocks its key */
    assert(!(rec[1] == R_UNKNOWN && rec[2] == R_NOT_MADE && effects == 0));
#endif
#endif
    skip
}

init {
  byte c;
  atomic { c = 1; do :: c <= NC -> run Call(c); c++ :: else -> break od }
}
