"""`fedmpdd epsilon`: the guarantee of a config against everybody who can look on."""

from typing import Annotated

import typer

from fedmpdd.cli.shared import Config, Json, Overrides, print_json, training


def epsilon(
    config: Config,
    overrides: Overrides = None,
    delta: Annotated[float, typer.Option(help="The δ of (ε, δ): below one over the number of clients.")] = 1e-5,
    target: Annotated[float | None, typer.Option(help="An ε to reach: also say which noise it takes.")] = None,
    colluding: Annotated[
        int | None, typer.Option(help="How many clients put together what they see; default: 1, or as secure says.")
    ] = None,
    as_json: Json = False,
) -> None:
    """State the (ε, δ) of a config against everybody who can look on, with what it rests on.

    Example: fedmpdd epsilon demo codec.keys=shared codec.clip=2.0 codec.noise_multiplier=0.5 downlink=replay
    """
    training()
    from fedmpdd.guarantees.guarantees import NEIGHBOURS, PROTECTS, guarantees, noise_for
    from fedmpdd.simulation import load_config

    loaded = load_config(config, overrides)
    stated = guarantees(loaded, delta, colluding)
    needed = noise_for(loaded, target, delta, colluding) if target is not None else {}
    if as_json:
        print_json({"rows": [row.as_dict() for row in stated], "noise_multiplier_for_target": needed})
        return
    print(f"protects {PROTECTS}\nneighbours: {NEIGHBOURS}")
    section = "codec" if loaded.secure is None else "secure"
    for row in stated:
        print(f"\n{row.model}: {row.statement}\n  against {row.against}\n  sees {row.sees}")
        if row.assumptions:
            noise = f"noise multiplier {row.noise_multiplier:.4g}, {row.releases} releases"
            print(f"  {noise}, sampling {row.sampling}; by {row.accountant}")
            print(f"  of one example: {row.example.statement}")
        for assumption in row.assumptions:
            print(f"  - {assumption}")
        if row.model in needed:
            print(f"  ε = {target:g} takes {section}.noise_multiplier={needed[row.model]:.4g}")
