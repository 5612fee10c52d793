"""MTP beside clm.py: at equal steps, and at the steps that fit into clm.py's training time.

Alone on the machine, since seconds are compared. Validation losses do not compare as they stand in
result.json: clm.py's is val_loss, mtp.py's val_loss_main; here both are val_loss_main.
"""

import clm
import mtp


def measure(seed, out, steps=clm.Config.steps, flags=()):
    """-> {label: metrics}"""

    def run(script, label, steps):
        every = str(max(1, steps // 8))
        flags_of_run = ["--steps", str(steps), "--eval-every", every, "--seed", str(seed)]
        result = script.main([*flags, *flags_of_run, "--out", f"{out}/{label}"])
        return {"val_loss_main": result["val_loss"], **result}

    theirs = run(clm, "clm", steps)
    equal = run(mtp, "equal-steps", steps)
    share = theirs["train_seconds"] / equal["train_seconds"]
    fewer = run(mtp, "equal-time", max(1, round(share * steps)))
    return {"clm": theirs, "mtp, equal steps": equal, "mtp, equal time": fewer}
