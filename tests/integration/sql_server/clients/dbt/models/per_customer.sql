{{ config(materialized='ephemeral') }}
select c.name, count(*) as orders, sum(o.total) as total, max(o.placed) as latest
from {{ source('shop', 'customers') }} c join {{ source('shop', 'orders') }} o on o.customer_id = c.id
group by c.name
