/*
 * epochs.pml: the origin of epochs: an etcd that is restored to an earlier state unknown to tokens, coordinators and the
 * ledger, and coordinators that may be stopped between any two of their steps.
 *
 * One task, NG claims, NR coordinators. Etcd is restored at most once (SAME: to any earlier state of this etcd) or
 * replaced by an empty one (EMPTY). Other tasks' claims also raise the revision (NOISE).
 * An epoch is generation * G + create_revision; code: tenure/domain/fencing.py compose_epoch
 *
 * Mutations:  M_REGISTER    the token is signed without a registered grant    M_COMPARE   registering compares no epoch
 *             M_CLAIM_ID    an equal epoch opens with any claim               M_GENERATION  claims compare no generation
 *             M_RAISE       a mismatch raises no generation           M_AGAIN     an incomplete raise is not finished
 * Properties: P_UNIQUE  no epoch is registered twice         P_GROW  epochs grow in the order of registration
 *             P_OLD     no token opens after a later one     P_TWO   two claims never open at one epoch
 *             P_ONCE    the loss of one etcd costs one generation, however many coordinators notice it
 *             P_LIVE    at rest a claim got the task, whatever etcd did, without a person's help
 */
#ifndef NG
#define NG 4
#endif
#ifndef NR
#define NR 2
#endif
#ifndef NOISE
#define NOISE 1
#endif
#ifndef EMPTY
#define EMPTY 0
#endif
#ifdef P_ALL
#define P_ONCE
#define P_UNIQUE
#define P_GROW
#define P_OLD
#define P_TWO
#endif
#ifndef NL
#define NL 3                    /* how often the generation may be raised: a bound of the search; P_ONCE says that once is enough */
#endif
#define G 16
#ifdef M_AGAIN
#define HALF_RAISED (0)
#else
#define HALF_RAISED (seen < g && e / G < g && worked < g)
#endif

/* etcd */
byte rev = 2, key, key_rev, key_gen;    /* revision; the claim key: claim id (0: none), create_revision, its generation */
byte egen = 1;                          /* the generation's key, 0: absent */
byte s_rev, s_key, s_key_rev, s_key_gen, s_egen;
bit  snapped, restored;
/* ledger */
byte lgen = 1, granted, gclaim, highest, fence, fclaim;
/* tokens, in the order of their registration; ghosts */
byte n, nclaim, noise, last_open, tok[NG + 1], tcl[NG + 1];
bit  used[NR + 1];

#ifdef M_COMPARE
#define REGISTERS(e) (1)
#else
#define REGISTERS(e) ((e) > granted && (e) / G >= lgen)
#endif
#ifdef M_GENERATION
#define SAME_GENERATION (1)
#else
#define SAME_GENERATION (egen == g)
#endif

inline hand_out(id, e) {
  n++; tok[n] = e; tcl[n] = id; k = 1;
  do :: k < n ->
#ifdef P_UNIQUE
       assert(tok[k] != e);
#endif
#ifdef P_GROW
       assert(tok[k] < e);
#endif
       k++ :: else -> break od; k = 0
}

proctype Coordinator() {
  byte g, id, r, e, target, seen, worked = 1, k; bit doubt = 1;     /* worked: the newest generation that it adopted */
  do
  /* ---- settle: both generations and the revision are compared; code: services/coordinator/generation.py Generation._settle */
  :: d_step { doubt -> g = lgen; e = highest };
     d_step { seen = egen; r = rev };
     if
#ifndef M_RAISE
     /* etcd is ahead because the ledger was raised after it was read; code: services/coordinator/generation.py Generation._was_raised_between */
     :: d_step { seen > g && lgen != g -> g = 0; e = 0; r = 0; seen = 0 }
     :: d_step { (seen < g || (seen > g && lgen == g) || (seen == g && g * G + r < e)) && lgen <= NL ->
          /* code: services/coordinator/generation.py is_half_raised; services/checkpoint/epochs.py, by compare-and-set */
          if :: HALF_RAISED -> target = g
             :: else -> target = (g > seen -> g : seen) + 1;
                if :: lgen == g -> lgen = target; printf("ledger: generation %d\n", target) :: else -> target = lgen fi fi;
#ifdef P_ONCE
          assert(lgen <= 2);
#endif
        };
        /* code: services/coordinator/lease_store/generation_key.py move */
        d_step { if :: egen == seen -> rev++; egen = target; printf("etcd: generation %d\n", target) :: else fi; g = 0; e = 0; r = 0; seen = 0; target = 0 }
#endif
     :: d_step { seen == g && g * G + r >= e -> doubt = 0; worked = g; e = 0; r = 0; seen = 0 };
        /* claims of an older generation; code: services/coordinator/generation.py Generation._clear_older */
        d_step { if :: key && key_gen < g -> key = 0; key_rev = 0; key_gen = 0; rev++ :: else fi }
     fi
  /* ---- claim: key absent, generation as settled -> put; code: services/coordinator/lease_store/claim_keys.py */
  :: d_step { !doubt && key == 0 && nclaim < NG && SAME_GENERATION -> rev++; nclaim++; id = nclaim; key = id; key_rev = rev; key_gen = g;
       e = g * G + rev; printf("coordinator %d: claim %d, epoch %d.%d\n", _pid, id, g, rev) };
     /* ---- register, then sign; code: services/checkpoint/sql/queries.sql register_grants, services/coordinator/claims/granting.py ClaimGranter._grant */
     if
#ifdef M_REGISTER
     :: d_step { granted = e; gclaim = id; if :: e > highest -> highest = e :: else fi; hand_out(id, e) }
#else
     :: d_step { REGISTERS(e) -> granted = e; gclaim = id; if :: e > highest -> highest = e :: else fi;
          printf("ledger: claim %d registered\n", id); hand_out(id, e) }
     :: d_step { !REGISTERS(e) -> doubt = 1; printf("ledger: claim %d refused\n", id) };
        d_step { if :: key == id && key_rev == e % G -> key = 0; key_rev = 0; key_gen = 0; rev++ :: else fi }
#endif
     fi;
     d_step { id = 0; e = 0 }
  :: d_step { !doubt && egen != g -> doubt = 1 }      /* detected within a second; code: Generation.watch_over */
  /* ---- a key whose claim is not the registered one; code: services/coordinator/claims/reconcile.py Reconciliation._delete_unworked */
  :: d_step { key && key != gclaim && id == 0 && nclaim < NG -> key = 0; key_rev = 0; key_gen = 0; rev++; printf("reconcile: an unregistered key is deleted\n") }
  od
}

active proctype World() {
  do
  :: d_step { key && nclaim < NG -> key = 0; key_rev = 0; key_gen = 0; rev++; printf("etcd: the claim key is deleted\n") }
  :: d_step { noise < NOISE -> noise++; rev++ }
#if EMPTY
  :: d_step { !restored && nclaim && nclaim < NG -> restored = 1; rev = 1; key = 0; key_rev = 0; key_gen = 0; egen = 0; printf("etcd: REPLACED\n") }
#else
  :: d_step { !snapped -> snapped = 1; s_rev = rev; s_key = key; s_key_rev = key_rev; s_key_gen = key_gen; s_egen = egen }
  :: d_step { snapped && !restored && rev > s_rev && nclaim < NG -> restored = 1; rev = s_rev; key = s_key; key_rev = s_key_rev; key_gen = s_key_gen;
       egen = s_egen; printf("etcd: RESTORED to revision %d\n", rev) }
#endif
  od
}

/* code: tenure/domain/admission.py decide_open */
#ifdef M_REGISTER
#define MAY_OPEN(i) (tok[i] > fence || (tok[i] == fence && SAME_CLAIM(i)))
#else
#ifdef M_CLAIM_ID
#define MAY_OPEN(i) (tok[i] == granted)
#else
#define MAY_OPEN(i) (tok[i] == granted && tcl[i] == gclaim)
#endif
#endif
#define SAME_CLAIM(i) (tcl[i] == fclaim)
proctype Owner(byte i) {
  do
  :: d_step { tok[i] && MAY_OPEN(i) && !(tok[i] == fence && tcl[i] == fclaim) -> printf("ledger: Open(epoch %d.%d)\n", tok[i] / G, tok[i] % G);
#ifdef P_TWO
       assert(tok[i] != fence);
#endif
#ifdef P_OLD
       assert(i > last_open);
#endif
       fence = tok[i]; fclaim = tcl[i]; if :: i > last_open -> last_open = i :: else fi }
  od
}

active proctype Quiet() {
end:
  timeout ->
#ifdef P_LIVE
    assert(nclaim == NG || lgen > NL || (key && key == gclaim));
#endif
    skip
}

init { byte k; atomic {
  k = 1; do :: k <= NR -> run Coordinator(); k++ :: else -> break od;
  k = 1; do :: k <= NG -> run Owner(k); k++ :: else -> break od } }
