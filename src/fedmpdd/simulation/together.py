"""Gradients that several federations of one task ask for, computed in one pass through the network."""

from collections.abc import Sequence

from fedmpdd.simulation.clients import Computed, GradientRequest


def compute_together(requests: Sequence[GradientRequest]) -> list[Computed]:
    """Return what each request asks for; those that can be are computed in one pass, others one by one.

    Args:
        requests: of different federations.

    """
    groups: list[list[int]] = []
    for number, request in enumerate(requests):
        for group in groups:
            if requests[group[0]].client_step.joins(request.client_step):
                group.append(number)
                break
        else:
            groups.append([number])
    results: dict[int, Computed] = {}
    for group in groups:
        first = requests[group[0]].client_step
        results |= zip(group, first.gradients_of_all([requests[number] for number in group]), strict=True)
    return [results[number] for number in range(len(requests))]
