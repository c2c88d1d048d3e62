{{ config(materialized='view') }}
select * from {{ ref('per_customer') }} where total > 600 order by total desc, name
