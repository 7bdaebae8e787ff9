"""Which test proves which fact: sections 1.3, 2.2, 3 and 7 of the facts on Level Zero and the NPU driver.

`test_coverage.py` checks that every test named here exists, and that every module of the suite is named.
"""

from __future__ import annotations

from typing import NamedTuple


class Fact(NamedTuple):
    """One statement, and the tests (`module::test`) that fail when a driver does otherwise."""

    section: str
    statement: str
    tests: tuple[str, ...]


def _facts(section: str, module: str, rows: dict[str, str]) -> tuple[Fact, ...]:
    """Facts of one section; tests are separated by spaces, and belong to `module` unless they name one."""
    return tuple(
        Fact(
            section,
            statement,
            tuple(test if "::" in test else f"{module}::{test}" for test in tests.split()),
        )
        for statement, tests in rows.items()
    )


FACTS = (
    *_facts(
        "1.3",
        "test_contexts",
        {
            "memory of one context is unknown in another": "test_memory_of_another_context_is_unknown",
            "copies between contexts are refused at append": (
                "test_copy_between_contexts_is_refused_when_appended"
            ),
            "many contexts at once": "test_many_contexts_live_at_once",
            "destroying a context destroys what was created in it": (
                "test_destroying_a_context_gives_back_what_was_created_in_it"
            ),
        },
    ),
    *_facts(
        "1.7",
        "test_memory",
        {
            "host, device and shared memory are mapped": "test_every_kind_is_visible_to_the_host",
            "export needs exactly the DMA_BUF flag": (
                "test_export_of_another_type_is_an_invalid_enumeration"
            ),
            "import by descriptor": (
                "test_imported_memory_is_the_exported_memory test_device_works_on_imported_memory"
            ),
            "the descriptor has the page-rounded size": "test_exported_descriptor_has_the_size_in_pages",
        },
    ),
    *_facts(
        "2.1",
        "test_identity",
        {
            "init flags: NPU bit or UNINITIALIZED": (
                "test_drivers_are_found_with_the_npu_flag test_drivers_of_other_types_only_are_uninitialized"
            ),
            "API version 1.15": "test_api_version_is_the_one_of_the_headers",
            "driver uuid and version": "test_driver_uuid_is_the_npu_driver_uuid",
            "no sub-devices": "test_device_has_no_sub_devices",
            "compute and image properties are zeros": "test_compute_and_image_properties_are_zeros",
            "one memory DDR": "test_device_has_one_memory_called_ddr",
            "memory access RW and ATOMIC": "test_host_and_device_memory_can_be_accessed_atomically",
            "DMA_BUF": "test_memory_is_imported_and_exported_as_dma_buf",
            "no peers": "test_devices_are_not_peers",
            "one queue group, fill pattern 4": "test_device_has_one_queue_group_that_computes_and_copies",
            "global timestamps": (
                "test_global_timestamps_go_forward_together "
                "test_global_timestamps_tick_at_the_timer_resolution"
            ),
            "sysman brand, vendor, version": "test_sysman_names_an_npu_of_intel",
            "engine activity": "test_sysman_engine_is_busy_while_it_works",
        },
    ),
    *_facts(
        "2.2",
        "test_unsupported",
        {"unsupported functions": "test_function_is_an_unsupported_feature"},
    ),
    *_facts(
        "2.2",
        "test_identity",
        {
            "the last error is described": "test_last_error_is_described",
            "each thread has its own last error": "test_last_error_is_the_one_of_the_calling_thread",
        },
    ),
    *_facts(
        "2.3",
        "test_identity",
        {
            "extension names and versions": "test_extension_is_listed_with_its_version",
            "lookup by name": "test_extension_table_is_found_by_name",
            "the graph extension matches as a substring": (
                "test_graph_extension_is_found_by_its_older_names"
            ),
            "unknown name is INVALID_ARGUMENT": "test_unknown_extension_is_an_invalid_argument",
        },
    ),
    *_facts(
        "3.1",
        "test_graph_arguments",
        {
            "inputs before outputs, index global": "test_inputs_come_before_outputs",
            "unused dimensions are 1": "test_unused_dimensions_are_one",
            "quantisation 1 and 0, zero point 0": "test_quantization_is_the_identity",
            "metadata": "test_metadata_describes_the_model",
            "friendly and tensor names": "test_version_3_tells_rank_and_names",
            "property flags": (
                "test_graph_creation::test_compiled_graph_says_so "
                "test_graph_creation::test_blob_makes_a_graph_that_is_pre_compiled "
                "test_profiling::test_profiled_graph_says_so "
                "test_graph_creation::test_persistent_input_says_whether_it_was_kept"
            ),
            "init stage is always 2, both calls may be repeated": (
                "test_graph_creation::test_graph_needs_initialization_by_its_own_call "
                "test_graph_creation::test_initialize_may_be_repeated "
                "test_execution::test_initialize_in_a_list_may_be_repeated"
            ),
            "device reports NGRAPH_LITE with a compiler": (
                "test_graph_creation::test_device_tells_the_graph_extension_and_the_compiler"
            ),
        },
    ),
    *_facts(
        "3.2",
        "test_graph_arguments",
        {
            "precisions and layouts by index": (
                "test_arguments_have_the_precisions_and_layouts_of_the_build_flags "
                "test_build_flags_choose_the_precision_of_an_input "
                "test_inference_takes_and_gives_the_precisions_of_the_build_flags"
            ),
            "values in either case": "test_precisions_may_be_written_in_small_letters",
            "config": "test_config_of_the_build_flags_is_accepted",
            "options of compiler and driver": (
                "test_graph_creation::test_compiler_lists_its_options "
                "test_graph_creation::test_driver_has_an_empty_list_of_options "
                "test_graph_creation::test_options_of_the_driver_are_an_unsupported_feature"
            ),
        },
    ),
    *_facts(
        "3.3",
        "test_graph_creation",
        {
            "null context, device": "test_null_context_is_refused test_null_device_is_refused",
            "null descriptor, output, input": (
                "test_null_descriptor_is_refused test_null_output_is_refused test_null_input_is_refused"
            ),
            "size 0 is INVALID_SIZE": "test_empty_input_is_an_invalid_size",
            "unknown format is INVALID_ARGUMENT": "test_unknown_format_is_an_invalid_argument",
            "no blob is INVALID_NATIVE_BINARY": (
                "test_native_input_that_is_no_blob_is_an_invalid_native_binary "
                "test_truncated_blob_is_an_invalid_native_binary"
            ),
            "invalid IR is UNSUPPORTED_FEATURE": "test_broken_model_is_an_unsupported_feature",
            "query network: text of names, native is UNSUPPORTED_ENUMERATION": (
                "test_query_network_lists_the_layers "
                "test_query_network_of_a_blob_is_an_unsupported_enumeration"
            ),
            "log 1: last failure of the thread; a good graph has none": (
                "test_older_log_is_that_of_the_last_failure_of_the_thread "
                "test_older_log_of_a_good_graph_is_empty"
            ),
            "log 2 by handle, sizes with the NUL, both texts equal": (
                "test_failed_creation_has_a_log test_both_versions_of_the_log_of_a_failure_are_equal"
            ),
            "cache lines in the log": ("test_cache::test_build_log_tells_that_the_blob_was_stored_and_found"),
            "native binary 2 is usable and PRE_COMPILED": (
                "test_both_versions_give_the_same_blob test_blob_makes_a_graph_that_is_pre_compiled "
                "test_graph_of_a_blob_computes_the_same"
            ),
            "memory query types, bad type INVALID_ARGUMENT": (
                "test_memory_query::test_cache_queries_answer "
                "test_memory_query::test_unknown_query_is_an_invalid_argument"
            ),
            "DDR counts requested sizes: 48 KB, then exactly 20000 more": (
                "test_memory_query::test_one_allocation_is_counted_to_the_byte "
                "test_memory_query::test_size_is_not_rounded_to_pages"
            ),
            "closing a list with a barrier adds": (
                "test_memory_query::test_command_buffer_of_a_closed_list_counts"
            ),
            "does not grow across inferences": (
                "test_memory_query::test_repeated_inference_does_not_use_more"
            ),
            "null graph; evict is a success": "test_null_graph_is_refused test_evict_is_a_success",
        },
    ),
    *_facts(
        "3.4",
        "test_cache",
        {
            "second compile is loaded": "test_second_compilation_is_loaded_from_the_cache",
            "modification time unchanged": "test_loading_from_the_cache_does_not_change_the_entry",
            "80 hex characters, mode 0440": "test_entry_is_one_file_named_by_its_hash",
            "empty directory variable turns it off": "test_empty_directory_setting_turns_caching_off",
            "failure to create turns it off": "test_directory_that_cannot_be_made_turns_caching_off",
            "size 0x100 stores nothing": "test_small_limit_stores_nothing",
            "unparsable size is 0": "test_unparsable_limit_stores_nothing",
            "total keeps all, total - 1 evicts one": "test_limit_evicts_what_was_not_used_for_longest",
            "flipped byte: compiled and stored again": (
                "test_entry_with_a_flipped_byte_is_compiled_and_stored_again"
            ),
            "threads all succeed": "test_threads_that_compile_the_same_model_all_succeed",
            "DISABLE_CACHING": "test_disabled_caching_never_loads_and_never_stores",
            "hash struct is the key": (
                "test_input_hash_is_the_key_if_it_is_given test_input_hash_with_other_build_flags_misses"
            ),
        },
    ),
    *_facts(
        "3.5",
        "test_execution",
        {
            "pointer inside a tracked allocation": "test_arguments_may_be_interior_pointers",
            "append snapshots the arguments": (
                "test_later_arguments_do_not_change_an_earlier_append "
                "test_later_arguments_are_used_by_later_appends"
            ),
            "one graph in several lists": "test_one_graph_is_in_several_lists_at_once",
            "unset argument is UNINITIALIZED": "test_unset_argument_is_uninitialized",
            "null graph: INVALID_NULL_HANDLE and UNINITIALIZED": "test_null_graph_is_refused",
            "set argument clears strides": "test_strides::test_set_argument_value_clears_the_strides",
            "strides count elements, innermost first": (
                "test_strides::test_strided_input_is_read_with_its_strides"
            ),
            "strides only for listed arguments": (
                "test_strides::test_strides_of_another_argument_are_an_invalid_argument "
                "test_strides::test_strides_without_the_option_are_an_invalid_argument"
            ),
            "properties 3 tell who takes strides": (
                "test_strides::test_argument_properties_tell_who_takes_strides"
            ),
            "argument before strides; left out they are erased": (
                "test_strides::test_strides_before_their_argument_are_an_invalid_argument "
                "test_strides::test_strides_can_be_mutated_and_are_erased_when_left_out"
            ),
            "id is the running command count": (
                "test_mutable_lists::test_next_command_id_is_the_number_of_commands_so_far"
            ),
            "update of a closed list acts at the next submit": (
                "test_mutable_lists::test_updated_input_is_used_by_the_next_execution "
                "test_mutable_lists::test_update_between_submission_and_end_does_not_change_what_was_submitted"
            ),
            "unknown id, flags, empty chain, ordinary list": (
                "test_mutable_lists::test_unknown_command_id_is_an_invalid_argument "
                "test_mutable_lists::test_flags_of_the_update_are_an_invalid_argument "
                "test_mutable_lists::test_empty_update_is_an_invalid_argument "
                "test_mutable_lists::test_update_of_an_ordinary_list_is_an_invalid_argument"
            ),
            "id of a closed list or with another flag": (
                "test_mutable_lists::test_next_command_id_of_a_closed_list_is_an_invalid_argument "
                "test_mutable_lists::test_next_command_id_with_another_flag_is_an_invalid_argument"
            ),
            "mutating touches neither graph nor other commands": (
                "test_mutable_lists::test_update_does_not_change_the_graph "
                "test_mutable_lists::test_update_does_not_change_another_command_of_the_graph"
            ),
        },
    ),
    *_facts(
        "3.6",
        "test_profiling",
        {
            "graph without profiling NOT_AVAILABLE": "test_graph_without_profiling_has_no_pool",
            "count 0 INVALID_SIZE": "test_empty_pool_is_an_invalid_size",
            "index out of range, occupied": (
                "test_index_out_of_range_is_an_invalid_argument test_used_index_is_in_use"
            ),
            "pool with live queries": "test_pool_with_live_queries_is_in_use",
            "execute without a query INVALID_NULL_HANDLE": "test_profiled_graph_needs_a_query",
            "layer records": (
                "test_layers_are_told_after_an_inference test_time_of_a_layer_is_split_over_the_units"
            ),
            "task records": "test_tasks_are_told_after_an_inference",
            "raw data": "test_raw_data_is_there_after_an_inference",
        },
    ),
    *_facts(
        "7.1",
        "test_queues",
        {
            "time-out 0 polls": (
                "test_synchronize_polls_with_a_zero_timeout test_fences::test_zero_timeout_polls"
            ),
            "UINT64_MAX is infinite": (
                "test_synchronize_waits_for_the_work test_fences::test_infinite_timeout_waits_for_the_work"
            ),
            "deadline passed is NOT_READY, may be tried again": (
                "test_synchronize_gives_up_after_its_timeout_and_can_be_tried_again "
                "test_fences::test_timeout_that_passes_is_not_ready_and_can_be_tried_again"
            ),
            "TDR: DEVICE_LOST for queue and fence": (
                "test_wait_for_ever_is_aborted_and_the_queue_is_lost "
                "test_fence_of_an_aborted_submission_says_device_lost"
            ),
            "later syncs repeat DEVICE_LOST": "test_lost_queue_says_so_every_time",
            "other queues and contexts go on": "test_other_queues_and_contexts_work_on_after_an_abort",
            "an aborted job leaves its event NOT_READY": (
                "test_aborted_submission_leaves_its_event_not_ready"
            ),
            "device and context status after a reset": (
                "test_device_and_context_status_are_success_after_an_abort"
            ),
            "queue sync signals its fences": "test_synchronize_leaves_its_fences_signalled",
            "nothing submitted is SUCCESS": "test_synchronize_without_work_is_success",
        },
    ),
    *_facts(
        "7.2",
        "test_fences",
        {
            "never submitted is NOT_READY at once": (
                "test_unsubmitted_fence_is_not_ready "
                "test_unsubmitted_fence_does_not_wait_whatever_the_timeout"
            ),
            "FLAG_SIGNALED starts signalled": "test_fence_created_signalled_is_ready",
            "done is SUCCESS until reset": (
                "test_fence_is_ready_after_its_work test_fence_stays_ready_until_it_is_reset"
            ),
            "reset is NOT_READY": "test_reset_fence_is_not_ready",
            "reset before the end does not detach the jobs": (
                "test_reset_before_the_end_does_not_detach_the_work "
                "test_reset_between_submission_and_end_is_ready_after_the_end"
            ),
            "only empty lists signal at once": "test_only_empty_lists_signal_the_fence_at_once",
            "fence of another queue, after the work was submitted": (
                "test_fence_of_another_queue_is_refused test_work_has_run_although_the_fence_was_refused"
            ),
            "a new submit replaces the job set": "test_new_submission_replaces_the_work_of_a_fence",
            "the first failure of all jobs": (
                "test_failures::test_fence_of_several_lists_tells_of_the_first_that_failed"
            ),
        },
    ),
    *_facts(
        "7.3",
        "test_events",
        {
            "host signal and reset act at once": "test_host_signal_acts_at_once test_host_reset_acts_at_once",
            "SUCCESS for host or device signal": "test_host_signal_acts_at_once test_device_signals_an_event",
            "sync waits for the work that signals it": (
                "test_wait_lasts_until_the_work_that_signals_has_ended "
                "test_wait_for_the_signal_of_a_command_lasts_as_long"
            ),
            "no live job: NOT_READY at once": (
                "test_wait_without_work_that_signals_returns_at_once "
                "test_wait_for_the_event_of_a_reset_list_returns_at_once"
            ),
            "used or out-of-range index": (
                "test_used_index_is_an_invalid_argument test_index_out_of_range_is_an_invalid_argument"
            ),
            "destroy frees the index": "test_destroying_an_event_frees_its_index",
            "pool count 0": "test_empty_pool_is_an_invalid_size",
            "devices with a null array": "test_devices_without_an_array_are_an_invalid_size",
            "no auto-reset": (
                "test_event_stays_signalled_until_it_is_reset "
                "test_event_stays_signalled_after_a_command_waited_for_it"
            ),
            "running a list again does not reset": "test_running_a_list_again_does_not_reset_its_event",
        },
    ),
    *_facts(
        "7.4",
        "test_command_lists",
        {
            "unclosed or immediate list is UNINITIALIZED": (
                "test_unclosed_list_is_uninitialized test_immediate_list_cannot_be_executed"
            ),
            "count 0 INVALID_SIZE": "test_no_lists_are_an_invalid_size",
            "null array or entry INVALID_NULL_POINTER": (
                "test_null_array_is_a_null_pointer test_null_entry_is_a_null_pointer"
            ),
            "empty lists skipped": "test_empty_lists_are_skipped",
            "many executions without reset": "test_closed_list_runs_many_times_without_reset",
            "content is the snapshot": "test_reset_and_new_recording_do_not_change_what_was_submitted",
            "append after close NOT_AVAILABLE": (
                "test_append_after_close_is_not_available "
                "test_execution::test_append_after_close_is_not_available"
            ),
            "second close SUCCESS": "test_second_close_is_success",
            "reset reopens and empties": (
                "test_reset_opens_and_empties_a_list test_reset_list_has_to_be_closed_again"
            ),
            "host synchronize of an ordinary list": (
                "test_host_synchronize_of_an_ordinary_list_is_uninitialized"
            ),
            "immediate: each append drains the one before": (
                "test_immediate_lists::test_next_append_waits_for_the_one_before"
            ),
            "immediate: close UNINITIALIZED, reset SUCCESS": (
                "test_immediate_lists::test_close_is_uninitialized "
                "test_immediate_lists::test_reset_is_success"
            ),
            "immediate: host synchronize waits and resets": (
                "test_immediate_lists::test_host_synchronize_gives_up_after_its_timeout "
                "test_immediate_lists::test_list_works_on_after_host_synchronize"
            ),
            "immediate: events of a command are folded in": (
                "test_immediate_lists::test_signal_event_of_a_command_is_signalled "
                "test_immediate_lists::test_wait_event_of_a_command_is_waited_for"
            ),
            "immediate: explicit event commands run on their own": (
                "test_immediate_lists::test_explicit_event_commands_run_by_themselves"
            ),
            "barriers order the commands of a list": "test_commands_of_a_list_run_in_order_across_barriers",
            "events order queues": "test_events::test_event_orders_two_queues",
            "DEVICE_SYNC is strictly ordered": "test_queues::test_device_sync_queue_runs_lists_in_order",
            "other ordinal INVALID_ARGUMENT": (
                "test_other_ordinal_is_an_invalid_argument "
                "test_queues::test_other_ordinal_is_an_invalid_argument "
                "test_immediate_lists::test_other_ordinal_is_an_invalid_argument"
            ),
            "DEVICE_SYNC with SYNCHRONOUS INVALID_ENUMERATION": (
                "test_queues::test_device_sync_on_a_synchronous_queue_is_an_invalid_enumeration"
            ),
        },
    ),
    *_facts(
        "7.5",
        "test_errors",
        {
            "every row of the table": "test_call_has_its_documented_result",
            "a refused call leaves the session as it was": "test_session_works_on_after_a_refused_call",
            "alloc ids ascend from 1, page size 4096": (
                "test_memory::test_ids_ascend_from_one test_memory::test_page_size_is_4096"
            ),
            "range of an interior pointer: base of the allocation, size unrounded": (
                "test_memory::test_range_of_an_interior_pointer_is_that_of_the_allocation "
                "test_memory::test_range_has_the_size_that_was_asked_for"
            ),
            "wait count without array, in each command": (
                "test_commands::test_waits_without_an_array_are_an_invalid_size"
            ),
        },
    ),
    *_facts(
        "7.6",
        "test_identity",
        {
            "ids, SIMD, slices, ticks of each platform": "test_device_has_the_identity_of_its_platform",
            "execution units": "test_device_has_the_execution_units_of_its_platform",
            "name, type, flags": "test_device_is_an_integrated_npu_of_intel",
            "limits": "test_device_limits_are_those_of_the_npu",
            "cycles a second with properties 1.2": (
                "test_timer_resolution_of_the_newer_structure_is_cycles_a_second"
            ),
        },
    ),
    *_facts(
        "7.7",
        "test_memory",
        {
            "all kinds are visible to the host": "test_every_kind_is_visible_to_the_host",
            "interior pointers everywhere": (
                "test_commands::test_copy_takes_interior_pointers "
                "test_execution::test_arguments_may_be_interior_pointers "
                "test_events::test_event_works_at_every_index_of_a_pool"
            ),
            "destroying with work in flight": (
                "test_memory_in_use_by_the_device_survives_its_free "
                "test_queues::test_queue_may_be_destroyed_with_work_in_flight "
                "test_command_lists::test_list_may_be_destroyed_while_it_runs "
                "test_execution::test_graph_may_be_destroyed_while_it_runs "
                "test_fences::test_fence_may_be_destroyed_while_its_work_runs"
            ),
            "the same list twice or on two queues is held, not refused": (
                "test_command_lists::test_list_runs_on_two_queues "
                "test_command_lists::test_list_may_be_submitted_again_while_it_runs"
            ),
            "nothing is left of what was destroyed": (
                "test_leaks::test_created_and_destroyed_objects_are_gone"
            ),
        },
    ),
)
