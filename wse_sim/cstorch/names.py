"""Every public name of the interface, with its tier and a note.

Tier 1: names of the interface's documentation and all names that public scripts use often. Tier 2: names that make the vendor's public
trainers and models importable. Tier 3: names that exist, but raise an error with an alternative when they are used.

``python -m wse_sim.cstorch.names docs/cstorch.md`` writes the table into the page.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- names: generated -->", "<!-- end of names -->"


@dataclass(frozen=True)
class Names:
    """Names of one module; an empty module is the interface itself."""

    module: str
    tier: int
    names: str
    note: str

    @property
    def paths(self) -> list[str]:
        """Dotted paths below the interface."""
        return [f"{self.module}.{name}" if self.module else name for name in self.names.split()]


TABLE: tuple[Names, ...] = (
    Names("", 1, "backend configure Backend BackendType", "one kind per process; CSX simulates, CPU and GPU run plain eager"),
    Names("", 1, "compile", "prepares the same module object; adds .device and .backend"),
    Names("", 1, "trace compile_step", "the step is captured whole at its first call, then replayed"),
    Names("", 1, "step_closure checkpoint_closure", "run at the step's end with CPU tensors; the second on checkpoint steps only"),
    Names("", 1, "save load", "HDF5 files, renamed into place; torch's pickles are read too"),
    Names("", 1, "use_cs is_tracing current_backend current_executor current_torch_device", "what is current"),
    Names("", 1, "pol current_pol", "precision level of what a callable captures"),
    Names("", 1, "make_constant from_numpy to_numpy", "constants of the step; values where they may be read"),
    Names("", 1, "name_scope summarize_scalar summarize_tensor scalar_summary tensor_summary save_summaries",
          "outputs with a name, written to the executor's writer"),
    Names("", 1, "metrics_report short_metrics_report counter_names counter_value metric_names metric_data clear_all",
          "the metrics report with the names of traced backends"),
    Names("", 1, "install_aliases reset ProgramError", "only in this simulator: install the interface's modules, reset the run, base class of all errors"),
    Names("", 2, "manual_seed set_debug_scope add_debug_name get_debug_name", "small helpers"),
    Names("optim", 1, "SGD Adam AdamW AdamBase Adamax NAdam RAdam Adagrad Adadelta Adafactor ASGD RMSprop Rprop Lamb Lion",
          "equal to torch's of the same name, or to the paper's formula"),
    Names("optim", 1, "Optimizer configure_optimizer configure_lr_scheduler configure_param_groups", "custom optimizers implement preinitialize"),
    Names("optim", 2, "configure_optimizer_params configure_scheduler configure_scheduler_params configure_weight_decay_scheduler ParamsT", "schedules of any option"),
    Names("optim.lr_scheduler", 1,
          "LRScheduler ConstantLR PolynomialLR LinearLR ExponentialLR InverseExponentialTimeDecayLR InverseSquareRootDecayLR "
          "CosineDecayLR SequentialLR PiecewiseConstantLR MultiStepLR StepLR CosineAnnealingLR LambdaLR "
          "CosineAnnealingWarmRestarts MultiplicativeLR ChainedScheduler ChainedLR CyclicLR OneCycleLR ScalePerParamLR",
          "closed forms of the step count; custom ones implement _get_closed_form_lr"),
    Names("optim.lr_scheduler", 2,
          "Constant Polynomial Linear Exponential InverseExponentialTimeDecay InverseSquareRootDecay CosineDecay "
          "PiecewiseConstant MultiStep Step CosineAnnealing Lambda Multiplicative", "older names"),
    Names("optim.scheduler", 2,
          "Scheduler ConstantScheduler PolynomialScheduler LinearScheduler ExponentialScheduler "
          "InverseExponentialTimeDecayScheduler InverseSquareRootDecayScheduler CosineDecayScheduler SequentialScheduler "
          "PiecewiseConstantScheduler MultiStepScheduler StepScheduler CosineAnnealingScheduler LambdaScheduler "
          "CosineAnnealingWarmRestartsScheduler MultiplicativeScheduler ChainedScheduler CyclicScheduler OneCycleScheduler "
          "ScalePerParamScheduler Value", "the same forms for any option of a group; param_group_tags choose groups"),
    Names("optim.weight_decay_scheduler", 2,
          "WeightDecayScheduler ConstantWD PolynomialWD LinearWD ExponentialWD InverseExponentialTimeDecayWD "
          "InverseSquareRootDecayWD CosineDecayWD SequentialWD PiecewiseConstantWD MultiStepWD StepWD CosineAnnealingWD "
          "LambdaWD CosineAnnealingWarmRestartsWD MultiplicativeWD ChainedWD CyclicWD OneCycleWD ScalePerParamWD",
          "for the weight decay"),
    Names("amp", 1, "GradScaler optimizer_step", "constant and dynamic loss scaling; a skipped step changes nothing, the schedule included"),
    Names("amp", 1,
          "set_half_dtype get_half_dtype get_half_dtype_str get_floating_point_dtype get_floating_point_dtype_str "
          "enable_mixed_precision mixed_precision is_cbfloat use_bfloat", "cbfloat16 shows as torch.float16"),
    Names("amp", 1, "autocast disable_casts", "on the wafer casts are inserted by the compiler"),
    Names("utils.data", 1, "DataLoader DataExecutor compute_num_steps infer_batch_size DistributedSampler SyntheticDataset",
          "input_fn is called by every worker; --real-workers makes them processes"),
    Names("utils.data", 2, "RestartableDataLoader Schedule MbsSetting MicroBatchSize SampleSpec TensorSpec", ""),
    Names("utils", 1, "CSConfig infer_batch_size", "cluster settings, locked by the first compile"),
    Names("utils", 2, "call_once", ""),
    Names("utils.tracker", 1, "RateTracker", "rates in wafer time; numbers that may also be called"),
    Names("utils.tensorboard", 1, "SummaryWriter", "TensorBoard's writer if installed, otherwise JSON lines"),
    Names("utils.nest", 2, "visit_torch_tensors visit_structure recurse_spec diff", ""),
    Names("utils.utils", 2, "FilterCallable make_param_filter convert_glob_to_regex", ""),
    Names("utils.benchmark", 2, "benchmark_dataloader", "measures the rate of a loader"),
    Names("utils.kernel", 2, "kernel_annotater", "kernels are matched by shape; the name is kept"),
    Names("utils.num_kv_groups", 2, "groups_annotater", "the shapes already contain this"),
    Names("distributed", 1,
          "ClusterConfig is_streamer num_streamers get_streaming_rank is_master_ordinal num_receivers get_ordinal get_worker_state",
          "in a worker its rank; the client is not a streamer (0 of 1)"),
    Names("distributed", 2, "CSConfig WorkerState num_tasks rendezvous world_size get_rank", ""),
    Names("metrics", 1,
          "Metric AccuracyMetric PerplexityMetric MeanMetric FBetaScoreMetric DiceCoefficientMetric MeanIOUMetric "
          "compute_all_metrics get_all_metrics", "sums are state of the step; every execution starts again"),
    Names("amp", 2, "use_bfloat16 get_init_params", "older names"),
    Names("saver.pt_h5_saver", 2, "CerebrasStateDict", "a checkpoint file as a dictionary"),
    Names("saver", 2, "PyTorchH5Saver", "single tensors of a checkpoint file"),
    Names("nn", 2, "StripPadding Scope SelectiveGrad SmoothL1Loss DiceCELoss", ""),
    Names("nn.functional", 2, "one_hot", "without a read; needs num_classes"),
    Names("nn.functional", 2, "sparse_matmul sparse_act_matmul", "each token with the weights of its expert; masked tokens"),
    Names("sparse", 2,
          "configure map_sparsity_algorithm Static GMP SET RigL SparsityAlgorithm DynamicSparsity Group configure_sparsity_optimizer "
          "configure_sparsity_wrapper SparsityWrapperOptimizer default_sparse_param_filter",
          "masks are state; the fraction of ones goes to the simulation"),
    Names("sparse", 2,
          "Constant Linear Exponential Polynomial Cosine Steps UpdateSchedule FreqUpdateSchedule ListUpdateSchedule",
          "the sparsity, and when masks change"),
    Names("profiler", 2, "profile schedule tensorboard_trace_handler", "captures started inside the program"),
    Names("monitor", 2, "start_server trace trace_detached", "captures of a running job"),
    Names("experimental.listener", 2, "create_listener register_traced_tensor_hook Listener ListenerMode", "tensors of the step, at every step"),
    Names("experimental.metrics", 1, "AccuracyMetric PerplexityMetric compute_all_metrics", "pairs instead of a dict"),
    Names("backends.csx.precision", 1, "optimization_level", "0, 1, 2"),
    Names("backends.csx.performance", 1, "micro_batch_size transfer_processes", ""),
    Names("backends.csx.debug", 2,
          "retrace_every_iteration lazy_initialization drop_data debug_args ini fabric_type_blacklist", ""),
    Names("cbtorch", 1, "initialize module optimizer dataloader Session", "the 1.x interface: a plain training loop"),
    Names("core.cb_model", 2,
          "use_cs step_closure save to_cpu device mark_step is_streamer num_streamers get_run_step set_run_config "
          "print_metrics_report metrics_counter_value master_print", "helpers of the 1.x interface"),
    Names("cbtorch", 2, "env state", "state of the run that 1.8 trainers read: mode, tracked tensors, callbacks"),
    Names("core.appliance", 2, "ApplianceMode", "the loop of 1.8 trainers: one traced batch, then the results of each step"),
    Names("core", 2, "annotation cb_model modes", "modules of the interface's core"),
    Names("core.cb_model", 2,
          "is_appliance is_wse_device is_receiver is_master_ordinal get_ordinal num_tasks num_receivers get_streaming_rank to_device "
          "make_constant set_rng_state set_attribute write_to_summary run_step_closures add_step_closure mesh_reduce rendezvous RateTracker "
          "set_state_names set_metric_state_names set_target_num_replicas print_update",
          "helpers of the 1.x interface that 1.8 trainers call"),
    Names("distributed", 2, "get_streaming_batch_size get_world_size service_resolver hit_worker_cache_limit WORKER_CACHE_ROOT", "functions that input pipelines of public trainers call"),
    Names("utils", 2, "extract_loss", "finds the loss among a model's outputs"),
    Names("core.annotation", 2, "AnnotationMode create_annotation", "precision levels and placement hints reach the plan; other hints have no effect"),
    Names("appliance.errors", 2, "ApplianceNanError", ""),
    Names("appliance.environment", 2, "appliance_environ", ""),
    Names("experimental", 2, "Compression", "accepted; weight traffic does not change"),
    Names("core.compile", 2, "register_trace_fn_pre_hook register_trace_fn_post_hook", "around every call of a step"),
    Names("appliance.storage", 2, "StorageReader StorageWriter StorageDeleter H5Reader H5Writer", "files; s3:// is refused"),
    Names("experimental", 3,
          "run_implicit_autoregressive_loop start_implicit_loop update_implicit_loop get_loop_iteration_slice",
          "text generation is simulated by wse-sim generate"),
    Names("storage", 3, "S3Reader S3Writer", "write to a local path"),
    Names("cirh", 3, "FusedTopK FusedTopP", "operators of the vendor's compiler"),
)  # fmt: skip


def rows() -> list[str]:
    """Return the table in Markdown."""
    out = ["| names | tier | note |", "|---|---|---|"]
    for group in sorted(TABLE, key=lambda g: (g.tier, g.module != "", g.module)):
        prefix = f"`{group.module}.` " if group.module else ""
        out.append(
            f"| {prefix}{' '.join(f'`{n}`' for n in group.names.split())} | {group.tier} | {group.note} |"
        )
    return out


def filled(page: str) -> str:
    """Return a page with the table between its marks."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n{chr(10).join(rows())}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
