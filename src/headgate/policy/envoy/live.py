"""Files of envoyproxy/ratelimit in a folder that is watched: what is in force, renewed when one of them changes."""

from __future__ import annotations

import os
from pathlib import Path

from headgate.core.errors import InvalidRule
from headgate.policy.envoy.loading import load
from headgate.policy.envoy.matching import DescriptorPolicy
from headgate.policy.live import EVERY, Live
from headgate.policy.loading import text_of
from headgate.policy.source import FolderSource, yaml_files


class LiveDescriptors(Live[DescriptorPolicy, DescriptorPolicy]):
    """Keeps descriptor trees up to date; see `Live`. A folder that is empty, or gone, changes nothing.

    Args:
        folder: where the files are: all that end in .yaml or .yml make one configuration.
        merge_domains: whether several files may have the same domain.
        every: seconds between two looks at them.
    """

    def __init__(self, folder: str | os.PathLike[str], *, merge_domains: bool = False, every: float = EVERY) -> None:
        def loaded(path: Path) -> DescriptorPolicy:
            texts = {str(file): text_of(file) for file in yaml_files(path)}
            if not texts:
                raise InvalidRule(f"{path}: no file there ends in .yaml or .yml")
            return load(texts, merge_domains=merge_domains)

        super().__init__(FolderSource(folder, loaded), lambda policy, _: policy, every=every)
