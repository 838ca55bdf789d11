/* The fields: a row for each, which says how the driver is asked for it. */
#include <stdio.h>
#include <string.h>

#include "dcgm_fields.h"

#define MIB (1.0 / (1 << 20))
static const Field FIELDS[] = {
    {1, 's', "driver_version", OTHER, 0, 1, "nvmlSystemGetDriverVersion"},
    {50, 's', "name", STRING, 0, 1, "nvmlDeviceGetName"},
    {53, 's', "serial", STRING, 0, 1, "nvmlDeviceGetSerial"},
    {54, 's', "uuid", STRING, 0, 1, "nvmlDeviceGetUUID"},
    {57, 's', "pci_busid", OTHER, 0, 1, NULL},
    {84, 'i', "inforom_config_valid", NONE, 0, 1, NULL},
    {100, 'i', "sm_clock", UINT_OF, 1, 1, "nvmlDeviceGetClockInfo"},
    {101, 'i', "memory_clock", UINT_OF, 2, 1, "nvmlDeviceGetClockInfo"},
    {102, 'i', "video_clock", UINT_OF, 3, 1, "nvmlDeviceGetClockInfo"},
    {112, 'i', "clock_throttle_reasons", ULL, 0, 1, "nvmlDeviceGetCurrentClocksEventReasons"},
    {113, 'i', "sm_max_clock", UINT_OF, 1, 1, "nvmlDeviceGetMaxClockInfo"},
    {114, 'i', "memory_max_clock", UINT_OF, 2, 1, "nvmlDeviceGetMaxClockInfo"},
    {140, 'i', "memory_temp", BATCHED, 82, 1, NULL},
    {150, 'i', "gpu_temp", UINT_OF, 0, 1, "nvmlDeviceGetTemperature"},
    {153, 'i', "gpu_temp_tlimit", NONE, 0, 1, NULL},
    {155, 'd', "power_usage", UINT, 0, 1e-3, "nvmlDeviceGetPowerUsage"},
    {156, 'i', "total_energy_consumption", BATCHED, 83, 1, NULL},
    {157, 'd', "power_usage_instant", BATCHED, 186, 1e-3, NULL},
    {158, 'i', "slowdown_temp", UINT_OF, 1, 1, "nvmlDeviceGetTemperatureThreshold"},
    {159, 'i', "shutdown_temp", UINT_OF, 0, 1, "nvmlDeviceGetTemperatureThreshold"},
    {160, 'd', "power_management_limit", UINT, 0, 1e-3, "nvmlDeviceGetPowerManagementLimit"},
    {161, 'd', "power_management_limit_min", BATCHED, 187, 1e-3, NULL},
    {162, 'd', "power_management_limit_max", BATCHED, 188, 1e-3, NULL},
    {163, 'd', "power_management_limit_default", UINT, 0, 1e-3, "nvmlDeviceGetPowerManagementDefaultLimit"},
    {164, 'd', "enforced_power_limit", UINT, 0, 1e-3, "nvmlDeviceGetEnforcedPowerLimit"},
    {170, 'i', "fabric_manager_status", NONE, 0, 1, NULL},
    {171, 'i', "fabric_manager_failure_code", NONE, 0, 1, NULL},
    {190, 'i', "pstate", UINT, 0, 1, "nvmlDeviceGetPerformanceState"},
    {191, 'i', "fan_speed", UINT, 0, 1, "nvmlDeviceGetFanSpeed"},
    {200, 'i', "pcie_tx_throughput", NONE, 0, 1, NULL},
    {201, 'i', "pcie_rx_throughput", NONE, 0, 1, NULL},
    {202, 'i', "pcie_replay_counter", UINT, 0, 1, "nvmlDeviceGetPcieReplayCounter"},
    {203, 'i', "gpu_utilization", PART_OF, 0, 1, "nvmlDeviceGetUtilizationRates"},
    {204, 'i', "mem_copy_utilization", PART_OF, 1, 1, "nvmlDeviceGetUtilizationRates"},
    {206, 'i', "enc_utilization", SPREAD, 0, 1, "nvmlDeviceGetEncoderUtilization"},
    {207, 'i', "dec_utilization", SPREAD, 0, 1, "nvmlDeviceGetDecoderUtilization"},
    {230, 'i', "xid_errors", EVENT, 0, 1, NULL},
    {235, 'i', "pcie_max_link_gen", UINT, 0, 1, "nvmlDeviceGetMaxPcieLinkGeneration"},
    {236, 'i', "pcie_max_link_width", UINT, 0, 1, "nvmlDeviceGetMaxPcieLinkWidth"},
    {237, 'i', "pcie_link_gen", UINT, 0, 1, "nvmlDeviceGetCurrPcieLinkGeneration"},
    {238, 'i', "pcie_link_width", UINT, 0, 1, "nvmlDeviceGetCurrPcieLinkWidth"},
    {240, 'i', "power_violation", BATCHED, 74, 1, NULL},
    {241, 'i', "thermal_violation", BATCHED, 75, 1, NULL},
    {242, 'i', "sync_boost_violation", BATCHED, 76, 1, NULL},
    {243, 'i', "board_limit_violation", BATCHED, 77, 1, NULL},
    {244, 'i', "low_util_violation", BATCHED, 78, 1, NULL},
    {245, 'i', "reliability_violation", BATCHED, 79, 1, NULL},
    {246, 'i', "app_clock_violation", BATCHED, 80, 1, NULL},
    {247, 'i', "base_clock_violation", BATCHED, 81, 1, NULL},
    {250, 'i', "fb_total", MEMORY_2, 0, MIB, "nvmlDeviceGetMemoryInfo_v2"},
    {251, 'i', "fb_free", MEMORY_2, 2, MIB, "nvmlDeviceGetMemoryInfo_v2"},
    {252, 'i', "fb_used", MEMORY_2, 3, MIB, "nvmlDeviceGetMemoryInfo_v2"},
    {253, 'i', "fb_reserved", MEMORY_2, 1, MIB, "nvmlDeviceGetMemoryInfo_v2"},
    {310, 'i', "ecc_sbe_volatile_total", ERRORS, 0, 1, "nvmlDeviceGetTotalEccErrors"},
    {311, 'i', "ecc_dbe_volatile_total", ERRORS, 1, 1, "nvmlDeviceGetTotalEccErrors"},
    {312, 'i', "ecc_sbe_aggregate_total", ERRORS, 2, 1, "nvmlDeviceGetTotalEccErrors"},
    {313, 'i', "ecc_dbe_aggregate_total", ERRORS, 3, 1, "nvmlDeviceGetTotalEccErrors"},
    {346, 'i', "threshold_srm", NONE, 0, 1, NULL},
    {390, 'i', "retired_pages_sbe", NONE, 0, 1, NULL},
    {391, 'i', "retired_pages_dbe", NONE, 0, 1, NULL},
    {392, 'i', "retired_pages_pending", NONE, 0, 1, NULL},
    {393, 'i', "uncorrectable_remapped_rows", SPREAD, 1, 1, "nvmlDeviceGetRemappedRows"},
    {394, 'i', "correctable_remapped_rows", SPREAD, 0, 1, "nvmlDeviceGetRemappedRows"},
    {395, 'i', "row_remap_failure", SPREAD, 3, 1, "nvmlDeviceGetRemappedRows"},
    {396, 'i', "row_remap_pending", SPREAD, 2, 1, "nvmlDeviceGetRemappedRows"},
    {409, 'i', "nvlink_flit_crc_error_count_total", NONE, 0, 1, NULL},
    {419, 'i', "nvlink_data_crc_error_count_total", NONE, 0, 1, NULL},
    {429, 'i', "nvlink_replay_error_count_total", NONE, 0, 1, NULL},
    {439, 'i', "nvlink_recovery_error_count_total", NONE, 0, 1, NULL},
    {449, 'i', "nvlink_bandwidth_total", NONE, 0, 1, NULL},
    {497, 'i', "nvlink_error_dl_crc", NONE, 0, 1, NULL},
    {498, 'i', "nvlink_error_dl_recovery", NONE, 0, 1, NULL},
    {499, 'i', "nvlink_error_dl_replay", NONE, 0, 1, NULL},
    {526, 'i', "vgpu_license_status", NONE, 0, 1, NULL},
    {1001, 'd', "gr_engine_active", GPM, 1, 1e-2, NULL},
    {1002, 'd', "sm_active", GPM, 2, 1e-2, NULL},
    {1003, 'd', "sm_occupancy", GPM, 3, 1e-2, NULL},
    {1004, 'd', "tensor_active", GPM, 5, 1e-2, NULL},
    {1005, 'd', "dram_active", GPM, 10, 1e-2, NULL},
    {1006, 'd', "fp64_active", GPM, 11, 1e-2, NULL},
    {1007, 'd', "fp32_active", GPM, 12, 1e-2, NULL},
    {1008, 'd', "fp16_active", GPM, 13, 1e-2, NULL},
    {1009, 'i', "pcie_tx_bytes", GPM, 20, 1 << 20, NULL},
    {1010, 'i', "pcie_rx_bytes", GPM, 21, 1 << 20, NULL},
    {1011, 'i', "nvlink_tx_bytes", GPM, 61, 1 << 20, NULL},
    {1012, 'i', "nvlink_rx_bytes", GPM, 60, 1 << 20, NULL},
    {1013, 'd', "tensor_imma_active", GPM, 9, 1e-2, NULL},
    {1014, 'd', "tensor_hmma_active", GPM, 7, 1e-2, NULL},
    {1015, 'd', "tensor_dfma_active", GPM, 6, 1e-2, NULL},
    {1016, 'd', "integer_active", GPM, 4, 1e-2, NULL},
    {1200, 'i', "nvlink_tx_packets", NONE, 0, 1, NULL},
    {1201, 'i', "nvlink_tx_bytes_total", NONE, 0, 1, NULL},
    {1202, 'i', "nvlink_rx_packets", NONE, 0, 1, NULL},
    {1203, 'i', "nvlink_rx_bytes_total", NONE, 0, 1, NULL},
    {1420, 'i', "clocks_event_reason_sw_power_cap_ns", BATCHED, 74, 1, NULL},
    {1421, 'i', "clocks_event_reason_sync_boost_ns", BATCHED, 76, 1, NULL},
    {1422, 'i', "clocks_event_reason_sw_therm_ns", BATCHED, 269, 1, NULL},
    {1423, 'i', "clocks_event_reason_hw_therm_ns", BATCHED, 270, 1, NULL},
    {1424, 'i', "clocks_event_reason_hw_power_brake_ns", BATCHED, 271, 1, NULL},
    {1523, 'i', "get_gpu_recovery_action", BATCHED, 230, 1, NULL},
};
enum { COUNT = sizeof FIELDS / sizeof *FIELDS };

const Field *field_of(int id) {
    for (int i = 0; i < COUNT; i++)
        if (FIELDS[i].id == id) return &FIELDS[i];
    return NULL;
}

int is_profiling(int id) { return id >= 1001 && id < 1100; }

int is_batched(const Field *field) { return field->way == BATCHED; }

int profiling_fields(const uint16_t **ids) {
    static uint16_t found[COUNT];
    int n = 0;
    for (int i = 0; i < COUNT; i++)
        if (FIELDS[i].way == GPM) found[n++] = FIELDS[i].id;
    *ids = found;
    return n;
}

/* ---- what a field is ---- */

API int DcgmFieldsInit(void) { return OK; }
API int DcgmFieldsTerm(void) { return OK; }

API const FieldMeta *DcgmFieldGetById(uint16_t id) {
    static FieldMeta metas[COUNT];
    const Field *field = field_of(id);
    if (!field) return NULL;
    FieldMeta *meta = &metas[field - FIELDS];
    *meta = (FieldMeta){.id = id, .type = field->type, .scope = id != 1, .width = 10};
    meta->size = field->type == 's' ? 0 : 8;
    snprintf(meta->tag, sizeof meta->tag, "%s", field->tag);
    snprintf(meta->short_name, sizeof meta->short_name, "%.9s", field->tag);
    return meta;
}

API const FieldMeta *DcgmFieldGetByTag(const char *tag) {
    for (int i = 0; i < COUNT; i++)
        if (!strcmp(FIELDS[i].tag, tag)) return DcgmFieldGetById(FIELDS[i].id);
    return NULL;
}
